"""Splits through the parts of an op; the parts' numbers are proven in test_table.py."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.compiler.rules.rule_samples import call

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import op_name
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.factors import read
from partita.compiler.rules.signatures import Combination, axis_options
from partita.compiler.rules.table import default_rules
from partita.compiler.rules.walks import chunked, chunkings, expanded_combinations
from partita.testing.prover import Sample, call_of

TP = Mesh(tp=2)


def x(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def offered(
    sample: Sample, mesh: Mesh, segments: dict[str, tuple[int, ...]] | None = None
) -> tuple[Expansion, list[Combination]]:
    rule, found = default_rules.get(sample.op), call_of(sample)
    assert rule is not None
    factors = read(rule, found)
    (own,) = chunkings(found, factors, mesh)
    expansion = Expansion.of(default_rules, rule, own)
    assert expansion is not None
    tried = {name: frozenset({s}) for name, s in (segments or {}).items()}
    options = axis_options(rule, factors, tried)
    combinations = expanded_combinations(expansion, factors, options, tried, mesh)
    return expansion, list(combinations)


def test_softmax_over_a_split_dim_reduces_its_statistics_alone() -> None:
    expansion, (combination,) = offered(call("_softmax", x(4, 6), 1, False), TP)
    assert str(combination.signature) == "(S(1),) -> (S(1),)"
    assert combination.ways == (("d1", 2),)
    moves = expansion.moves(combination.signature, combination.parts)
    assert [f"{type_} {made} -> {wanted}" for type_, made, wanted in moves] == [
        "f32[4, 1] (P(max),) -> (B,)",
        "f32[4, 1] (P(sum),) -> (B,)",
    ]


def test_embedding_of_a_split_vocabulary_is_partial_and_moves_no_row() -> None:
    sample = call("embedding", x(6, 8), torch.zeros(4, 2, dtype=torch.int64))
    expansion, (combination,) = offered(sample, TP)
    assert str(combination.signature) == "(S(0),), (B,) -> (P(sum),)"
    moves = list(expansion.moves(combination.signature, combination.parts))
    assert [(str(t), str(a), str(b)) for t, a, b in moves] == [
        ("i64[6]", "(B,)", "(S(0),)")
    ]


def test_gradient_of_a_split_vocabulary_is_made_where_it_is_kept() -> None:
    ids = torch.zeros(4, 2, dtype=torch.int64)
    sample = call("embedding_dense_backward", x(4, 2, 8), ids, 6, -1, False)
    expansion, (combination,) = offered(sample, TP)
    assert str(combination.signature) == "(B,), (B,) -> (S(0),)"
    made = dict(zip(expansion.parts, combination.parts, strict=True))
    (zeros,) = [part for part in made if op_name(part) == "aten.full.default"]
    assert str(made[zeros]) == " -> (S(0),)"  # no rank holds all of them


def test_axes_split_the_batch_and_the_normalized_dim() -> None:
    sample = call("native_layer_norm", x(4, 6), [6], x(6), None, 1e-5)
    _, combinations = offered(sample, Mesh(dp=2, tp=2))
    found = {str(c.signature): dict(c.ways) for c in combinations}
    wanted = "(S(0), S(1)), (B, S(0)) -> (S(0), S(1)), (S(0), B), (S(0), B)"
    assert found[wanted] == {"d0": 2, "n0": 2}
    assert all("P" not in signature for signature in found)


def test_a_dim_may_be_split_by_segments() -> None:
    sample = call("_log_softmax", x(4, 8), 1, False)
    _, combinations = offered(sample, TP, {"d1": (4, 4)})
    assert [str(c.signature) for c in combinations] == [
        "(S(1),) -> (S(1),)",
        "(S(1; 4|4),) -> (S(1; 4|4),)",
    ]


def test_statistics_of_a_split_batch_are_those_of_all_of_it() -> None:
    sample = call(
        "_native_batch_norm_legit_functional",
        *(x(4, 2, 3), x(2), x(2), x(2), x(2), True, 0.1, 1e-5),
    )
    _, combinations = offered(sample, TP)
    assert str(combinations[0].signature) == (
        "(S(0),), (B,), (B,), (B,), (B,) -> (S(0),), (B,), (B,), (B,), (B,)"
    )


def test_causal_attention_splits_its_queries_but_not_its_keys() -> None:
    heads = x(2, 2, 6, 4)
    sample = call("partita.attention", heads, heads, heads, None, True, 1.0)
    _, (combination,) = offered(sample, TP)
    assert str(combination.signature) == "(S(2),), (B,), (B,) -> (S(2),), (S(2),)"


def test_a_cut_dim_adds_up_what_each_rank_has_of_the_slice() -> None:
    _, (combination,) = offered(call("slice.Tensor", x(6, 4), 0, 1, 4, 1), TP)
    assert str(combination.signature) == "(S(0),) -> (P(sum),)"


def test_truth_values_do_not_add_up() -> None:
    _, combinations = offered(call("slice.Tensor", x(6).bool(), 0, 1, 4, 1), TP)
    assert combinations == []


def test_a_scan_gathers_one_element_of_each_chunk() -> None:
    expansion, (combination,) = offered(call("cumsum", x(4, 7), 1), TP)
    assert str(combination.signature) == "(S(1),) -> (S(1),)"
    moves = list(expansion.moves(combination.signature, combination.parts))
    assert [(str(t), str(a), str(b)) for t, a, b in moves] == [
        ("f32[4, 2]", "(S(1),)", "(B,)"),
        ("f32[4, 2]", "(B,)", "(S(1),)"),
    ]


def test_a_window_is_lent_the_rows_of_neighbours_alone() -> None:
    common = ([1], [1], [1], False, [0], 1)
    sample = call("convolution", x(1, 1, 12), x(1, 1, 3), None, *common)
    expansion, (combination,) = offered(sample, Mesh(tp=3))
    assert str(combination.signature) == "(S(2),), (B,) -> (S(2),)"
    moves = list(expansion.moves(combination.signature, combination.parts))
    assert [(str(t), str(a), str(b)) for t, a, b in moves] == [
        ("f32[4, 1, 1, 1]", "(S(0; 1|3),)", "(S(0; 3|1),)"),
        ("f32[4, 1, 1, 1]", "(S(0; 3|1),)", "(S(0; 1|3),)"),
    ]


def test_parts_go_by_how_many_ways_chunks_are_cut() -> None:
    sample = call("cumsum", x(8, 6), 0)
    rule, found = default_rules.get(sample.op), call_of(sample)
    assert rule is not None
    factors, mesh = read(rule, found), Mesh(dp=2, tp=2)
    tried = [own.chunks for own in chunkings(found, factors, mesh)]
    assert tried == [(("d0", 2),), (("d0", 4),)]
    for text, chunks in (("(S(0), S(1))", 2), ("(S(0), S(0))", 4)):
        placement = Placement.parse(text)
        own = chunked(found, factors, Signature((placement,), (placement,)), mesh)
        assert own.chunks == (("d0", chunks),)


def test_chunks_smaller_than_what_they_lend_are_not_taken_apart() -> None:
    common = ([1], [3], [1], False, [0], 1)
    sample = call("convolution", x(1, 1, 8), x(1, 1, 7), None, *common)
    rule, found = default_rules.get(sample.op), call_of(sample)
    assert rule is not None
    four, two = (replace(found, chunks=(("y0", num),)) for num in (4, 2))
    assert Expansion.of(default_rules, rule, four) is None
    assert Expansion.of(default_rules, rule, two) is not None
