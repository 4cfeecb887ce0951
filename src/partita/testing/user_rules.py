"""Prove the rows that a user adds, on the calls of the model that they are used for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from partita.compiler.errors import BadRule
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.child import ChildFailed, run_in_child
from partita.compiler.rules.experiment import REFUSALS, random
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.shrink import shrunk
from partita.compiler.rules.table import default_rules
from partita.testing.prover import RuleDisproved, Sample, prove, sample_of

MESHES = (Mesh(a=2), Mesh(a=2, b=2))
MAX_NUMEL = 1 << 22
"""A call on larger tensors, whose op takes no smaller ones, cannot be proven."""


def cache_folder() -> Path:
    """Return the user's folder for what Partita finds out about ops.

    It is ``$XDG_CACHE_HOME/partita``, ``~/.cache/partita`` where that is not set.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "partita"


def prove_calls(
    rules: RuleSet,
    calls: Iterable[Call],
    trusted: RuleSet = default_rules,
    timeout_s: float = 120.0,
) -> int:
    """Prove rows that are not the default table's own; return how many signatures held.

    Every distinct call that such a row is used for is made on small integers and on
    numbers of any magnitude, in double precision where its op takes that, and on
    smaller tensors than its own; all signatures that the row gives are run on the
    shards of 2 and of 2x2 ranks, in a child process, since a kernel may crash on wrong
    ones.

    Args:
        rules: the table in use.
        calls: those of the model.
        trusted: rows that are proven elsewhere; equal ones are left out here.
        timeout_s: what the proof of one call may take.

    Raises:
        BadRule: for a row that does not fit a call or does not hold (the message names
            op, signature and figures), or whose op does not run here.
    """
    count = 0
    for call in dict.fromkeys(calls):
        rule = rules.get(call.op)
        if rule is None or rule == trusted.get(call.op):
            continue
        try:
            answer = run_in_child(partial(_prove, rule, call), timeout_s)
        except ChildFailed as error:
            raise BadRule(f"{call.op} cannot be proven: {error}") from error
        if isinstance(answer, str):
            raise BadRule(answer)
        count += answer
    return count


def _prove(rule: Rule, call: Call) -> int | str:
    """Return how many signatures hold, or what does not."""
    try:
        samples = [sample := _sample(call), *_of_any_magnitude(sample)]
        return sum(prove(rule, x, mesh) for x in samples for mesh in MESHES)
    except RuleDisproved as error:
        return f"rule disproved: {error}"
    except BadRule as error:
        return f"{call.op} on {[str(t) for t in call.operands]}: {error}"


def _of_any_magnitude(sample: Sample) -> list[Sample]:
    """Return the call on large and small numbers, where what it gives is finite.

    An op may be linear, say, below a limit alone.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        type_ = TensorType(tuple(leaf.shape), leaf.dtype)
        return random(type_, generator, draw=2, dtype=leaf.dtype)

    args, kwargs = map_aggregate((sample.args, dict(sample.kwargs)), draw)
    other = Sample(sample.op, args, kwargs)
    results = other.run(other.args, other.tensors)
    is_finite = all(x is None or bool(x.isfinite().all()) for x in results)
    return [other] if is_finite else []


def _sample(call: Call) -> Sample:
    """Return a small call that the op takes, in double precision if it can.

    Raises:
        BadRule: when there is none.
    """
    reasons: list[str] = []
    for tried in (shrunk(call), call):
        if sum(t.numel for t in tried.operands) > MAX_NUMEL:
            reasons.append(f"its tensors have more than {MAX_NUMEL} elements")
            continue
        for sample in (sample_of(tried), sample_of(tried, is_double=False)):
            try:
                results = sample.run(sample.args, sample.tensors)
            except REFUSALS as error:
                reasons.append(str(error).partition("\n")[0])
                continue
            shapes = [None if x is None else tuple(x.shape) for x in results]
            if shapes == [None if t is None else t.shape for t in tried.results]:
                return sample
            reasons.append("its results have other shapes")
    types = ", ".join(map(str, call.operands))
    raise BadRule(
        f"{call.op} of {types} does not run on random numbers on the CPU, so that its "
        f"rule cannot be proven: {reasons[-1]}"
    )
