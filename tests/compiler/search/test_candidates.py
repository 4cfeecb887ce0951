"""What nodes may take, and the price of each by the figures of the machine."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.ir.small_programs import Builder
from tests.compiler.search.hand_made import machine
from torch import fx

from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind, Program
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.calls import rule_and_factors
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.compiler.search.candidates import Candidates, bytes_of, flops_of
from partita.testing.prover import Sample, call_of

aten = torch.ops.aten
GRID = Mesh(dp=2, tp=2)
LAUNCH_S, FLOPS, MEMORY = 1e-6, 1e9, 2e9
MACHINE = machine(launch_s=LAUNCH_S, flops_per_s=FLOPS, memory_bytes_per_s=MEMORY)


def product(mesh: Mesh = GRID) -> tuple[Program, fx.Node]:
    b = Builder(mesh)
    x, w = b.enter("x", "f32[7, 4]"), b.enter("w", "f32[4, 6]")
    mm = b.call("mm/0", aten.mm.default, (x, w), "f32[7, 6]")
    b.leave(OutputKind.OUTPUT, "y", mm)
    return b.program(), mm


def candidates(
    program: Program,
    mesh: Mesh = GRID,
    rules: RuleSet = default_rules,
    hardware: Hardware = MACHINE,
) -> Candidates:
    return Candidates(program, rules, mesh, hardware)


def test_signatures_are_all_whole_first_and_each_once() -> None:
    program, mm = product()
    signatures = [p.choice.signature for p in candidates(program).of_call(mm)]
    assert str(signatures[0]) == "(B, B), (B, B) -> (B, B)"
    assert len(set(signatures)) == len(signatures)
    texts = {str(signature) for signature in signatures}
    assert "(S(0), B), (B, S(1)) -> (S(0), S(1))" in texts
    assert "(S(1), S(1)), (S(0), S(0)) -> (P(sum), P(sum))" in texts
    assert "(S(0), P(sum)), (B, B) -> (S(0), P(sum))" in texts


def test_prices_follow_the_largest_rank() -> None:
    program, mm = product()
    for priced in candidates(program).of_call(mm):
        signature = priced.choice.signature
        x, w, y = (
            shard_shape(shape, placement, GRID, (0, 0))
            for shape, placement in zip(
                [(7, 4), (4, 6), (7, 6)],
                [*signature.operands, *(p for p in signature.results if p)],
                strict=True,
            )
        )
        flops = 2 * x[0] * min(x[1], w[0]) * w[1]
        num_bytes = 4 * (x[0] * x[1] + w[0] * w[1] + y[0] * y[1])
        assert priced.flops == flops
        busy_s = max(flops / FLOPS, num_bytes / MEMORY)
        assert priced.choice.seconds == pytest.approx(LAUNCH_S + busy_s)


def test_work_counts_how_many_ways_it_is_split() -> None:
    program, mm = product()
    ways = {str(p.choice.signature): p.ways for p in candidates(program).of_call(mm)}
    assert ways["(B, B), (B, B) -> (B, B)"] == 1
    assert ways["(S(0), P(sum)), (B, B) -> (S(0), P(sum))"] == 2
    assert ways["(S(1), S(1)), (S(0), S(0)) -> (P(sum), P(sum))"] == 4


def test_flops_and_bytes_of_one_call() -> None:
    program, mm = product()
    found = candidates(program)
    _, factors = found.read[mm]
    assert flops_of(factors, {}) == 2 * 7 * 4 * 6
    assert flops_of(factors, {"m": 2, "k": 4}) == 2 * 4 * 1 * 6  # uneven: 4 of 7
    whole = found.of_call(mm)[0].choice.signature
    assert bytes_of(found.calls[mm], whole, GRID) == 4 * (28 + 24 + 42)


def test_views_are_free() -> None:
    b = Builder(GRID)
    x = b.enter("x", "f32[8, 4]")
    view = b.call("view/0", aten.reshape.default, (x, [32]), "f32[32]")
    b.leave(OutputKind.OUTPUT, "y", view)
    found = candidates(b.program()).of_call(view)
    assert {priced.choice.seconds for priced in found} == {0.0}
    assert len(found) > 1


def test_equal_calls_share_their_list() -> None:
    b = Builder(GRID)
    x = b.enter("x", "f32[8, 4]")
    first = b.call("relu/0", aten.relu.default, (x,), "f32[8, 4]")
    second = b.call("relu/1", aten.relu.default, (first,), "f32[8, 4]")
    third = b.call("neg/0", aten.neg.default, (second,), "f32[8, 4]")
    b.leave(OutputKind.OUTPUT, "y", third)
    found = candidates(b.program())
    assert found.of_call(first) is found.of_call(second)
    assert found.of_call(first) is not found.of_call(third)
    assert found.unknown == {}


def test_unknown_op_is_whole_everywhere_and_listed() -> None:
    program, mm = product()
    few = RuleSet.of(tuple(r for r in default_rules.rows if r.op != "aten.mm.default"))
    found = candidates(program, rules=few)
    assert [str(p.choice.signature) for p in found.of_call(mm)] == [
        "(B, B), (B, B) -> (B, B)"
    ]
    assert found.unknown == {"aten.mm.default": [mm]}


def test_axis_of_size_one_splits_nothing() -> None:
    mesh = Mesh(dp=1, tp=2)
    program, mm = product(mesh)
    found = candidates(program, mesh)
    for priced in found.of_call(mm):
        assert all(str(p.shardings[0]) == "B" for p in priced.choice.signature.operands)
    stored = found.of_tensor(TensorType.parse("f32[4, 6]"), {})
    assert [str(p) for p in stored] == ["(B, B)", "(B, S(0))", "(B, S(1))"]


def test_tensors_are_stored_in_pieces_that_no_rank_lacks() -> None:
    program, _ = product()
    found = candidates(program)
    stored = [str(p) for p in found.of_tensor(TensorType.parse("f32[3, 1]"), {})]
    # 3 rows over 4 ranks would leave the last without any, a dim of size 1 half of them
    assert stored == ["(B, B)", "(B, S(0))", "(S(0), B)"]


def test_tensors_may_be_stored_in_segments() -> None:
    program, _ = product(Mesh(tp=2))
    found = candidates(program, Mesh(tp=2))
    type_, segments = TensorType.parse("f32[12]"), {0: frozenset({(4, 4, 4), (6, 6)})}
    assert found.of_tensor(type_, segments) == (
        Placement.parse("B"),
        Placement.parse("S(0)"),
        Placement.parse("S(0; 4|4|4)"),
        Placement.parse("S(0; 6|6)"),
    )


@pytest.mark.parametrize(("is_causal", "share"), [(False, 1), (True, 2)])
def test_causal_attention_computes_half(is_causal: bool, share: int) -> None:
    heads = torch.ones(2, 4, 8, 16)
    args = (heads, heads, heads, None, is_causal, 1.0)
    sample = Sample("partita.attention.default", args, {})
    _, factors = rule_and_factors(default_rules, call_of(sample))
    assert flops_of(factors, {}) == 4 * 2 * 4 * 8 * 8 * 16 / share
