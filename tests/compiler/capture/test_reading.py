from __future__ import annotations

from functools import cache

from tests.models.zoo import ZOO

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.constants import print_constants
from partita.compiler.ir.program import operands
from partita.compiler.rules.calls import call_of


@cache
def captured() -> Captured:
    model, args, kwargs = ZOO["gpt2"]()
    return capture(model, args, kwargs)


def test_it_says_what_each_node_says_alone() -> None:
    program, reading = captured().program, captured().reading
    assert list(reading.used) == list(program.nodes())
    assert list(reading.calls) == list(program.calls())
    for node in program.nodes():
        assert reading.used[node] == operands(node)
    for node in program.calls():
        assert reading.calls[node] == call_of(node)
        assert reading.constants[node] == print_constants(node)


def test_what_is_equal_is_one_object() -> None:
    reading = captured().reading
    for values in (reading.calls.values(), reading.constants.values()):
        assert len(set(map(id, values))) == len(set(values)) < len(values)


def test_a_program_is_read_once() -> None:
    assert captured().reading is captured().reading
