"""Where a partitioned program first computes something else than the model.

The program as it was captured runs whole, in one process, and every rank's beside it.
What the ranks make of a node, put together by its placement, is compared with what the
node makes of whole tensors; the first that differs, in the order of the program, is to
blame: an op's signature, a re-placement, or parts that are not the op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from partita.compiler.ir.again import again_key
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    Program,
    Value,
    has_info,
    info,
    op_name,
    operands,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Broadcast, Partial, Placement
from partita.lowering import Lowered
from partita.passes.expand_ops import ExpandOps
from partita.passes.promote_precision import promote_precision
from partita.runtime.feeds import FeedKey, shards_of
from partita.runtime.shards import assemble, take_shard
from partita.runtime.virtual import run_all
from partita.verifying.relative_error import largest_of, relative_error

_Result = tuple[str, int]
"""The key of a node and which of its results."""

_CLEAR, _SLIGHT = 1e-6, 1e-9
"""Errors that cannot be rounding, and that might be."""


def first_divergence(
    program: Program,
    lowered: Lowered,
    ranks: Sequence[LocalProgram],
    values: Mapping[FeedKey, torch.Tensor],
) -> str:
    """Return one line that names the first node whose value departs, and how.

    Args:
        program: as it was captured.
        lowered: the plan carried out on it.
        ranks: what every rank runs, in double precision.
        values: the whole tensors that enter, in double precision.
    """
    captured = _whole_values(program, values)
    rules, plan = lowered.rules, lowered.plan
    parts = ExpandOps(plan, rules).run(program)
    expanded = _whole_values(parts, values)
    for (key, index), part in _stand_ins(program, parts).items():
        error = _error(expanded[part], captured[key, index])
        if error > _CLEAR:
            return f"the parts of {key!r} do not compute the op: off by {error:.1e}"
    wanted = {**expanded, **captured}
    again = set(plan.recompute)
    wanted |= {
        (again_key(key), index): value
        for (key, index), value in wanted.items()
        if key in again
    }
    for boxing in plan.boxings:
        wanted[boxing.key, 0] = wanted[boxing.producer, boxing.index]
    errors = _errors(ranks, values, wanted)
    for threshold in (_CLEAR, _SLIGHT):
        for node in lowered.program.calls():
            error = errors.get(info(node).key, 0.0)
            if error > threshold:
                return _describe(node, error)
    return (
        "every op agrees with the model as it was captured: the capture differs from "
        "the model, or what enters or leaves does"
    )


def _stand_ins(program: Program, parts: Program) -> dict[_Result, _Result]:
    """Return the parts that make the results of ops that were taken apart."""
    after = {info(node).key: node for node in parts.calls()}
    pairs = [
        pair
        for node in program.calls()
        if info(node).key in after
        for pair in zip(operands(node), operands(after[info(node).key]), strict=True)
    ]
    pairs += [
        (value_of(old), value_of(new))
        for (old, _), (new, _) in zip(program.results(), parts.results(), strict=True)
    ]
    found: dict[_Result, _Result] = {}
    for old, new in pairs:
        before, now = info(old.node).key, info(new.node).key
        if before != now:
            found[before, old.index] = now, new.index
    return found


def _whole_values(
    program: Program, values: Mapping[FeedKey, torch.Tensor]
) -> dict[_Result, torch.Tensor]:
    """Return what every node of a logical program makes of whole tensors."""
    mesh = Mesh(one=1)
    whole = Placement.broadcast(1)
    inputs, outputs = program.placeholders(), program.results()
    local = LocalProgram(
        program.graph_module,
        program.inputs,
        program.outputs,
        tuple(type_of(Value(node, 0)) for node, _ in inputs),
        tuple(type_of(value_of(node)) for node, _ in outputs),
        (whole,) * len(inputs),
        (whole,) * len(outputs),
        mesh,
        (0,),
        program.constants,
    )
    (local,) = promote_precision([local])
    found: dict[_Result, torch.Tensor] = {}

    def observe(_: int, node: fx.Node, value: Any) -> None:
        if has_info(node):
            for index, result in enumerate(_results(value)):
                if isinstance(result, torch.Tensor):
                    found[info(node).key, index] = result

    with torch.no_grad():
        run_all([local], [shards_of(local, values)], observe=observe)
    return found


def _errors(
    ranks: Sequence[LocalProgram],
    values: Mapping[FeedKey, torch.Tensor],
    wanted: Mapping[_Result, torch.Tensor],
) -> dict[str, float]:
    """Return by node how far what the ranks make is from what is wanted."""
    mesh = ranks[0].mesh
    held: dict[_Result, dict[int, torch.Tensor]] = {}
    errors: dict[str, float] = {}

    def observe(rank: int, node: fx.Node, value: Any) -> None:
        if not has_info(node) or info(node).signature is None:
            return
        fact = info(node)
        assert fact.signature is not None
        results = zip(_results(value), fact.signature.results, strict=False)
        for index, (shard, placement) in enumerate(results):
            result = fact.key, index
            if placement is None or result not in wanted:
                continue
            by_rank = held.setdefault(result, {})
            by_rank[rank] = shard
            if len(by_rank) == mesh.size:
                shards = [by_rank[r] for r in range(mesh.size)]
                del held[result]
                error = _error_of_shards(shards, wanted[result], placement, mesh)
                errors[fact.key] = max(error, errors.get(fact.key, 0.0))

    with torch.no_grad():
        run_all(ranks, [shards_of(r, values) for r in ranks], observe=observe)
    return errors


def _results(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _error_of_shards(
    shards: list[torch.Tensor],
    wanted: torch.Tensor,
    placement: Placement,
    mesh: Mesh,
) -> float:
    """Return the error of what shards stand for, and of each that is a copy."""
    try:
        worst = _error(assemble(shards, tuple(wanted.shape), placement, mesh), wanted)
    except ValueError:
        return float("inf")
    if not any(isinstance(s, Partial) for s in placement.shardings):
        copies = [s for s in placement.shardings if isinstance(s, Broadcast)]
        for rank, shard in enumerate(shards if copies else ()):
            own = take_shard(wanted, placement, mesh, mesh.coordinates(rank))
            worst = max(worst, _error(shard, own, wanted))
    return worst


def _error(
    found: torch.Tensor, wanted: torch.Tensor, whole: torch.Tensor | None = None
) -> float:
    """Return the relative error; where both are NaN, as masked rows are, there is none.

    It is relative to the largest value of ``whole``, of ``wanted`` unless given.
    """
    if found.dtype != wanted.dtype:
        return float("inf")
    if found.shape == wanted.shape:
        both = found.isnan() & wanted.isnan()
        found, wanted = found.masked_fill(both, 0), wanted.masked_fill(both, 0)
    scale = largest_of(wanted if whole is None else whole)
    return relative_error(found, wanted, max(scale, 1e-300))


def _describe(node: fx.Node, error: float) -> str:
    fact = info(node)
    source = f" ({fact.source})" if fact.source else ""
    return (
        f"first departs at {fact.key!r}{source}, {fact.phase}: off by {error:.1e}; "
        f"{op_name(node)} under {fact.signature}"
    )
