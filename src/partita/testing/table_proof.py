"""Prove the rows of a rule table on many calls of their ops, and print what was done.

Every signature of every call is run on 1-D and 2-D meshes. On 3-D meshes there are as
many as there are options cubed, so there only some calls of an op are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from partita.compiler.errors import BadRule
from partita.compiler.ir.mesh import Mesh
from partita.compiler.rules.factors import read
from partita.compiler.rules.rule import Rule, RuleSet
from partita.compiler.rules.signatures import axis_options
from partita.testing.prover import RuleDisproved, Sample, call_of, prove

MESHES = (Mesh(a=2), Mesh(a=3), Mesh(a=2, b=2))
CUBE = Mesh(a=2, b=2, c=2)
MAX_CUBES = 2
"""How many calls of an op are proven on a 3-D mesh."""

MAX_CUBE_OPTIONS = 8
"""What an axis may choose from there at most: 512 signatures, of 8 ranks each."""


@dataclass(frozen=True)
class OpProof:
    """What was proven of one op's row.

    Attributes:
        op: the overload.
        num_samples: calls it was tried on.
        num_options: signatures of one axis, of the call that has the most.
        num_checks: signatures run, over all calls and meshes.
        failures: of those that do not hold, the messages.
    """

    op: str
    num_samples: int
    num_options: int
    num_checks: int
    failures: tuple[str, ...] = ()


def prove_op(rule: Rule, samples: Sequence[Sample]) -> OpProof:
    """Prove every signature of ``rule`` on every sample; failures are collected."""
    num_checks, most, num_cubes = 0, 0, 0
    failures: list[str] = []
    for sample in samples:
        try:
            num_options = len(axis_options(rule, read(rule, call_of(sample)), {}))
        except (BadRule, IndexError, TypeError, ValueError) as error:
            failures.append(f"{rule.op} does not fit a call: {error}")
            continue
        most = max(most, num_options)
        meshes = list(MESHES)
        if num_cubes < MAX_CUBES and 1 < num_options <= MAX_CUBE_OPTIONS:
            num_cubes += 1
            meshes.append(CUBE)
        for mesh in meshes:
            try:
                num_checks += _prove(rule, sample, mesh)
            except RuleDisproved as error:
                failures.append(str(error))
                break
    return OpProof(rule.op, len(samples), most, num_checks, tuple(failures))


def _prove(rule: Rule, sample: Sample, mesh: Mesh) -> int:
    try:
        return prove(rule, sample, mesh)
    except RuleDisproved:
        double = in_double(sample)
        if all(x is y for x, y in zip(double.tensors, sample.tensors, strict=True)):
            raise
        return prove(rule, double, mesh)


def in_double(sample: Sample) -> Sample:
    """Return the same call with all that is in single precision in double."""

    def promote(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            wanted = _DOUBLE.get(leaf.dtype)
            return leaf if wanted is None else leaf.to(wanted)
        return _DOUBLE.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    args, kwargs = map_aggregate((sample.args, dict(sample.kwargs)), promote)
    return Sample(sample.op, args, kwargs, sample.stand_in)


_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def prove_table(
    rules: RuleSet,
    samples: Mapping[str, Sequence[Sample]],
    report: Callable[[str], None] = lambda _: None,
) -> tuple[OpProof, ...]:
    """Prove the row of every op that has samples, in the order of their names."""
    found: list[OpProof] = []
    for op in sorted(samples):
        rule = rules.get(op)
        if rule is not None:
            report(op)
            found.append(prove_op(rule, samples[op]))
    return tuple(found)


def format_proofs(proofs: Sequence[OpProof], missed: Mapping[str, int]) -> str:
    """Return one table: op, signatures, samples, checks, missed and failed."""
    header = ("op", "signatures", "samples", "checks", "missed", "failed")
    figures = [
        (
            p.num_options,
            p.num_samples,
            p.num_checks,
            missed.get(p.op, 0),
            len(p.failures),
        )
        for p in proofs
    ]
    rows = [(p.op, *of_op) for p, of_op in zip(proofs, figures, strict=True)]
    totals = [sum(column) for column in zip(*figures, strict=True)]
    lines = [header, *rows, (f"{len(rows)} ops", *totals)]
    texts = [[str(cell) for cell in line] for line in lines]
    widths = [max(len(line[at]) for line in texts) for at in range(len(header))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0])]
            + [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]
        )
        for line in texts
    )
