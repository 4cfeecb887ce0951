"""Prove the ``expand`` column of a row: ops taken apart compute what they computed.

The parts run on a sample's own tensors and must return what the op returns; then each
part's signature is proven, as any row's, on the tensors that it got.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import info, op_name
from partita.compiler.ir.signature import Signature
from partita.compiler.rules.agreement import scale_of, tolerance_of
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.factors import read
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.signatures import axis_options
from partita.compiler.rules.walks import chunkings, expanded_combinations
from partita.testing.prover import (
    RuleDisproved,
    Sample,
    call_of,
    difference,
    prove_signature,
)


def prove_expansion(rules: RuleSet, sample: Sample, mesh: Mesh) -> int:
    """Return how many signatures of a sample's op, taken apart, were proven.

    Args:
        rules: the table, which has the op's row and its parts'.
        sample: a call of an op.
        mesh: the ranks.

    Raises:
        RuleDisproved: when the parts compute anything else, or a part's signature
            does not hold.
    """
    rule, call = rules.get(sample.op), call_of(sample)
    if rule is None or rule.expand is None:
        return 0
    factors = read(rule, call)
    if not factors.expanded:
        return 0
    return sum(
        _prove(rules, rule, own, sample, mesh) for own in chunkings(call, factors, mesh)
    )


def _prove(rules: RuleSet, rule: Rule, call: Call, sample: Sample, mesh: Mesh) -> int:
    expansion = Expansion.of(rules, rule, call)
    if expansion is None:
        return 0
    factors = read(rule, call)
    options = axis_options(rule, factors, {})
    combinations = expanded_combinations(expansion, factors, options, {}, mesh)
    samples: dict[fx.Node, Sample] = {}
    proven: set[tuple[fx.Node, Signature]] = set()
    count = 0
    for combination in combinations:
        samples = samples or _run(expansion, sample)
        chosen = zip(expansion.parts, combination.parts, strict=True)
        for part, signature in chosen:
            if (part, signature) not in proven:
                proven.add((part, signature))
                prove_signature(expansion.read[part][0], samples[part], mesh, signature)
        count += 1
    return count


def _run(expansion: Expansion, sample: Sample) -> dict[fx.Node, Sample]:
    """Run the parts, check what they return, and return each part's own call."""
    values: dict[fx.Node, Any] = dict(
        zip(expansion.operands, sample.tensors, strict=True)
    )
    samples: dict[fx.Node, Sample] = {}
    for node in expansion.graph.nodes:
        if node.op == "call_function":
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            if node in expansion.read:
                samples[node] = Sample(op_name(node), args, kwargs)
            values[node] = node.target(*args, **kwargs)
    wanted = sample.run(sample.args, sample.tensors)
    for index, (result, want) in enumerate(zip(expansion.results, wanted, strict=True)):
        if result is None or want is None:
            if result is not None or (want is not None and want.numel()):
                raise _wrong(sample, index, "is there in only one of the two")
            continue
        found: torch.Tensor = values[result]
        tolerance = tolerance_of((*sample.tensors, want))
        if problem := difference(found, want, tolerance, scale_of((want, found))):
            raise _wrong(sample, index, problem)
    for part in expansion.parts:
        _check_types(part, values[part])
    return samples


def _check_types(part: fx.Node, made: Any) -> None:
    results = made if isinstance(made, tuple | list) else (made,)
    for type_, value in zip(info(part).types, results, strict=True):
        if type_ is not None and tuple(value.shape) != type_.shape:
            raise RuleDisproved(
                f"{info(part).key}: is {list(value.shape)}, its type says {type_}"
            )


def _wrong(sample: Sample, index: int, problem: str) -> RuleDisproved:
    return RuleDisproved(f"{sample.op}, taken apart: result {index} {problem}")
