"""What an allocator holds besides what a plan needs, as systems leave it there."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.fidelity.held import stage_bytes
from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.models import Shape
from benchmarks.fidelity.part import Part
from benchmarks.fidelity.recorded import recorded_bytes
from benchmarks.fidelity.system import System

from partita.compiler.ir.program import Phase
from partita.compiler.simulate.stage_items import Item, StageItems

SHAPE = Shape(4, 512, 8, 128, 1024, 2048)
# a layer is 6 commands forward, of which 4 are events of its message, and 8 backward
QUEUED = System(queued=10**6, kernels=(2, 4))
LAYOUT = Layout(
    SHAPE, "a100-80gb-selene", 1, 1, 2, 1, 3, is_sequence_parallel=True, system=QUEUED
)


def message(kind: str, phase: Phase) -> Item:
    return Item("mm/0", f"{kind} tp: mm/0", phase, 1.0, "tp", 100)


LAYER = StageItems(
    (),
    (
        message("reduce_scatter", Phase.FORWARD),
        message("all_gather", Phase.BACKWARD_INPUT),
    ),
    (),
)
# of two ranks: 200 bytes that are summed and the rank's 100; 100 that are gathered
FORWARD, BACKWARD = 300, 100


def recorded(layout: Layout = LAYOUT, **system: int) -> int:
    own = replace(layout, system=replace(layout.system, **system))
    layers = own.layers_of_stages[-1]
    return recorded_bytes([LAYER] * layers, layers, own)


def test_a_host_far_ahead_leaves_what_the_step_has_sent_so_far() -> None:
    assert recorded() == 4 * (3 * FORWARD + 2 * BACKWARD)  # three microbatches
    alone = replace(LAYOUT, batch=1)
    assert recorded(alone) == 4 * FORWARD


def test_no_more_than_the_queue_takes_is_left() -> None:
    assert recorded(queued=12) == 2 * FORWARD  # two of the four layers
    assert recorded(queued=4 * 6 + 8) == 4 * FORWARD + BACKWARD
    assert recorded(queued=0) == 0


def test_a_host_that_is_not_ahead_leaves_nothing() -> None:
    slow = replace(QUEUED, issue_s=1.0)  # as long as each message
    assert recorded(replace(LAYOUT, system=slow)) == 0
    half = replace(QUEUED, issue_s=0.5)  # 68 of 136 commands: 24, 32 and 12 of them
    left = recorded(replace(LAYOUT, system=half))
    assert left == 4 * FORWARD + 4 * BACKWARD + 2 * FORWARD


def test_a_host_waits_where_a_stage_receives() -> None:
    two = replace(LAYOUT, pp=2)  # two layers each
    assert recorded(two) == 2 * FORWARD


def test_only_the_stage_with_the_logits_needs_as_much_besides() -> None:
    two = replace(LAYOUT, pp=2)
    first, last = (stage_bytes([PART, PART], stage, 1, two) for stage in (0, 1))
    assert last == first + recorded(two)


def test_without_messages_nothing_is_recorded() -> None:
    assert recorded(replace(LAYOUT, tp=1)) == 0


PART = Part(
    LAYER, state_bytes=1000, saved_bytes=100, more_bytes=10, parameter_bytes=900
)
COPIES = 1900  # of 800 bytes in 16 bits, with ZeRO on 8 ranks


def test_gathered_pieces_lie_where_activations_were() -> None:
    system = System(gathers_copies=True, queued=1)
    layout = replace(LAYOUT, dp=8, tp=1, batch=24, zero=1, system=system)
    assert stage_bytes([PART], 0, 2, layout) == 1000 + COPIES
    assert stage_bytes([PART], 0, 30, layout) == 1000 + 30 * 100 + 10
    at_once = replace(layout, system=replace(system, queued=0))
    assert stage_bytes([PART], 0, 30, at_once) == 1000 + 30 * 100 + 10 + COPIES
    recorded = recorded_bytes([LAYER], 4, replace(layout, tp=2))
    with_messages = stage_bytes([PART], 0, 30, replace(layout, tp=2))
    assert with_messages == 1000 + 30 * 100 + 10 + COPIES + recorded > recorded > 0


def test_gradients_in_16_bits_are_there_besides() -> None:
    layout = replace(LAYOUT, dp=8, tp=1, batch=24)
    layout = replace(layout, system=System(gathers_copies=True, queued=1))
    assert stage_bytes([PART], 0, 2, layout) == 1000 + 2 * 100 + 10 + 900
