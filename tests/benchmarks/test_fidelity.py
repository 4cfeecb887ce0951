"""The benchmark's short cuts, on layouts small enough to be planned whole."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.fidelity import published, sweep
from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.models import Shape, build
from benchmarks.fidelity.predict import Prediction, options_of, predict
from benchmarks.fidelity.system import System
from tests.models.searched import searched

import partita as pt
from partita.compiler.ir.program import Phase, info
from partita.compiler.plan.stage_records import Stage
from partita.compiler.plan.stages import (
    join_stages,
    stage_document,
    stage_documents,
    write_schedule,
)
from partita.compiler.schedules.make import make_schedule
from partita.compiler.search.again import patterns_of
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.stage_cost import StageHeld
from partita.compiler.search.stage_of import stage_of
from partita.compiler.simulate.plan import schedule_of, step_of
from partita.compiler.simulate.stage_items import stage_items
from partita.lowering import in_stages
from partita.one_mesh.planner import Planner
from partita.pipelines.staged import with_priced_transfers

SHAPE = Shape(6, 512, 8, 128, 1024, 2048)
AS_PLANNED = System(reruns=False, is_sequence_first=False)
LAYOUT = Layout(SHAPE, "a100-80gb-selene", 3, 2, 2, 2, 16, system=AS_PLANNED)


def whole(layout: Layout) -> pt.Plan:
    """Return the plan of all layers, each on its stage, without the short cut."""
    model, batch = build(layout.shape, layout.batch)
    options = options_of(layout, model)
    planner = Planner.of(model, (), batch, layout.mesh, options)
    program = planner.captured.program
    sizes = layout.layers_of_stages
    of_layer = [stage for stage, layers in enumerate(sizes) for _ in range(layers)]
    number = 0
    of_forward: dict[str, int] = {}
    for node in program.calls():
        if info(node).phase is Phase.FORWARD:
            path = info(node).module.split(".")
            if path[0] in ("norm", "head"):
                number = layout.pp - 1
            number = of_layer[int(path[1])] if path[0] == "layers" else number
            of_forward[info(node).key] = number
    plans: list[pt.Plan] = []
    for stage in in_stages(program, stage_of(program, of_forward), layout.pp):
        own = replace(
            options,
            pins=pins_of(stage, options.pins),
            recompute=patterns_of(stage, options.recompute),
        )
        captured = replace(planner.captured, program=stage)
        plans.append(searched(replace(planner, captured=captured, options=own)))
    size = layout.mesh.size
    ranks = [tuple(range(n * size, (n + 1) * size)) for n in range(layout.pp)]
    joined = join_stages(plans, [Stage(layout.mesh, own, ()) for own in ranks])
    schedule = make_schedule("1f1b", layout.pp, layout.microbatches)
    return with_priced_transfers(
        replace(
            joined,
            mesh=pt.Mesh(pp=layout.pp, **dict(layout.mesh.axes)),
            schedule=write_schedule(schedule),
        )
    )


# Small ops at the model's ends are not pinned, so seconds may differ a little.
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(LAYOUT, id="plain"),
        pytest.param(
            replace(LAYOUT, recompute="full", zero=1),
            id="full",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(LAYOUT, sizes=(3, 3, 0)), id="loss alone", marks=pytest.mark.slow
        ),
        pytest.param(
            replace(LAYOUT, shape=replace(SHAPE, is_llama=True), fuse=False),
            id="llama",  # op by op, as the sweep ran it
            marks=pytest.mark.slow,
        ),
    ],
)
def test_stages_are_the_sum_of_their_layers(layout: Layout) -> None:
    plan, found = whole(layout), predict(layout)
    items = [replace(stage_items(own), begun=()) for own in stage_documents(plan)]
    step = step_of(schedule_of(plan), items, plan.transfers)  # sums behind all else
    assert found.seconds == pytest.approx(step.seconds, rel=5e-3)
    live = make_schedule("1f1b", layout.pp, layout.microbatches).most_live
    own = [StageHeld.of(stage_document(plan, n)) for n in range(layout.pp)]
    held = [
        o.peak_bytes + (n - 1) * o.saved_bytes for o, n in zip(own, live, strict=True)
    ]
    assert found.bytes == pytest.approx(max(held), rel=0.05)


def test_a_published_run_is_read(tmp_path: Path) -> None:
    config = {"model": "175B", "tp": 8, "pp": 12, "gpus": 96, "global_batch": 24}
    source = {"source": "Megatron-LM SC'21", "metric": "achieved_tflops_per_gpu"}
    rows = [
        source | {"table": "Fig 12", "config": config, "value": 109},
        source | {"table": "Fig 12", "config": {"model": "?"}, "value": 1},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    (run,), left_out = published.read(path)
    assert left_out == 1
    assert run.layout.microbatches == 24
    assert run.layout.recompute == "full"
    # 175 billion parameters, 8 FLOP each for 24 x 2048 tokens, and attention
    assert run.seconds == pytest.approx(8 * 174.6e9 * 24 * 2048 / 109e12 / 96, rel=0.03)


def test_pieces_are_gathered_into_copies_that_an_allocator_holds() -> None:
    layout = replace(LAYOUT, zero=1, dp=8)
    plain = predict(layout)
    copies = predict(replace(layout, system=replace(AS_PLANNED, gathers_copies=True)))
    # stage 0: the embedding and two layers of 12 h^2, halved by tp, in 16 bits
    whole = 2 * (1024 * 512 + 128 * 512 * 2 + 2 * 12 * 512**2) / 2
    more = copies.bytes - plain.bytes
    assert more == pytest.approx((3 - 5 / 8) * whole, rel=0.05)
    assert copies.seconds == plain.seconds
    whole_states = replace(layout, zero=0)
    gathered = replace(whole_states, system=replace(AS_PLANNED, gathers_copies=True))
    more = predict(gathered).bytes - predict(whole_states).bytes
    assert more == pytest.approx(whole, rel=0.05)  # gradients besides DDP's buckets
    alone = replace(gathered, dp=1)
    assert predict(alone).bytes == predict(replace(whole_states, dp=1)).bytes


def test_every_group_but_the_first_takes_memory() -> None:
    layout = replace(LAYOUT, pp=3, dp=8, tp=2, batch=16 * 4)
    # all 48 ranks; 8 of a node; 2 along tp, 8 along dp, 3 along pp; 6 with a copy
    assert layout.group_sizes == (2, 3, 6, 8, 8, 48)
    alone = replace(layout, pp=1, dp=1, tp=2, batch=16)
    assert alone.group_sizes == (2,)  # the same two, however they are called
    more = replace(layout, system=replace(AS_PLANNED, group_bytes=(1, 100)))
    assert predict(more).bytes - predict(layout).bytes == 1 + 4 * 100
    assert predict(more).seconds == predict(layout).seconds


SWEPT = {
    "nodes": "1.0",
    "microbatch_size": "1",
    "microbatches": "32",
    "dp": "1",
    "pp": "4",
    "tp": "2",
    "zero_stage": "0",
    "tp_mode": "REDUCE_SCATTER",
    "hidden_size": "2048",
    "num_layers": "16",
    "num_heads": "32",
    "vocab_size": "131072",
    "seq_len": "4096",
    "status": "Success",
    "tokens_per_s_per_gpu": "4096",
    "memory_reserved_gib": "2",
    "intra_node_all_reduce_busbw_gbps": "458",
}


def swept(tmp_path: Path, **changed: str) -> sweep.Measured:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(SWEPT))
        writer.writeheader()
        writer.writerow(SWEPT | changed)
    (found,) = sweep.read(path)
    return found


def test_a_row_of_the_sweep_is_read(tmp_path: Path) -> None:
    found = swept(tmp_path)
    assert found.group == (2048, 1)
    assert found.seconds == 32 / 8  # 32 samples of 4096 tokens on 8 ranks
    assert found.held_bytes == 2 * 2**30
    assert found.layout.is_sequence_parallel
    assert found.layout.hardware == "h100-efa"
    slow = swept(tmp_path, intra_node_all_reduce_busbw_gbps="45").layout
    assert slow.hardware != "h100-efa"
    assert slow.system != found.layout.system
    ran_out = swept(tmp_path, status="OOM", intra_node_all_reduce_busbw_gbps="")
    assert ran_out.seconds is None


# The output costs what four layers of 2048 do; a stage has what reaches its share.
@pytest.mark.parametrize(
    ("stages", "sizes"),
    [("2", (10, 6)), ("4", (5, 5, 5, 1)), ("8", (3, 2, 3, 2, 3, 2, 1, 0))],
)
def test_stages_have_layers_until_their_share_is_reached(
    tmp_path: Path, stages: str, sizes: tuple[int, ...]
) -> None:
    assert swept(tmp_path, pp=stages).layout.layers_of_stages == sizes


def row(seconds: float | None, micro: int) -> sweep.Measured:
    return sweep.Measured(1, replace(LAYOUT, micro=micro), seconds, 0.0)


def test_a_group_is_judged_by_what_fits() -> None:
    rows = [row(2.0, 1), row(3.0, 2), row(None, 4)]
    found = [Prediction(2.5, 10, {}), Prediction(3.0, 10, {}), Prediction(1.0, 99, {})]
    judged = sweep.judge(rows, found, 50)
    assert (judged.chosen, judged.count) == (1.0, 2)
    assert judged.spearman == pytest.approx(1.0)
    assert sweep.out_of_memory(rows, found, 50) == (1.0, 1.0)
    assert sweep.judge(rows, found, 100).chosen == 0.0  # what is chosen does not run
    assert sweep.out_of_memory(rows, found, 100) == (0.0, 0.0)
