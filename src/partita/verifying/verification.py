"""``verify``: every rank of a plan in this one process, against the user's own model.

The reference is the eager module, called as the user calls it; never our capture of
it. Two runs are compared: in double precision, every float dtype and cast promoted on
both sides, where the partitioned program must agree to 1e-9; and in the model's own
precision, where it may be off by 1e-5, or by four times what the original itself is
off from double precision (DESIGN, decision 15).

What that is depends on how the original happens to round: a gradient that is zero but
for rounding may be off by any part of what it can be, as may all that a norm of few
elements makes. So where the first call of it allows too little, it is called again,
its parameters moved by a rounding and its loss scaled, so that it rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch

from partita.compiler.capture.capture import Captured
from partita.compiler.capture.grouped import grouped_products
from partita.compiler.capture.inputs import describe, name_leaves
from partita.compiler.capture.scored_model import (
    LossFunction,
)
from partita.compiler.capture.torch_private import pytree
from partita.compiler.collection import collection_paused
from partita.compiler.errors import (
    BadOptions,
    CaptureFailed,
    InvariantViolation,
    PartitaError,
)
from partita.compiler.ir.in_time import AXIS
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, OutputRole
from partita.compiler.ir.sbp import Placement
from partita.compiler.local_invariants import in_step, local_of_all
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.lowering import capture_for, loss_of, lower
from partita.passes.promote_precision import (
    promote_arguments,
    promote_precision,
    promote_tensor,
)
from partita.runtime.brought import copies_of
from partita.runtime.feeds import FeedKey, part_of_batch, shards_of
from partita.runtime.shards import take_shard
from partita.runtime.virtual import run_all
from partita.runtime.virtual_step import Left, run_step
from partita.verifying.divergence import first_divergence
from partita.verifying.precision import (
    ConstantDtypes,
    double_precision,
    doubled,
    own_tolerance,
    promoting_floats,
)
from partita.verifying.reference import Reference, device_of
from partita.verifying.relative_error import relative_error
from partita.verifying.report import Report
from partita.verifying.virtual_stages import VirtualStages

DOUBLE_TOLERANCE = 1e-9
_SCALES = (1.1, 0.7, 1.3)  # no powers of two, which round alike


@dataclass(frozen=True)
class Verifier:
    """The references of one model and its inputs; verifies any number of plans.

    ``others`` make that in the model's own precision so that it rounds otherwise.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: LossFunction | None
    double: Reference
    own: Reference
    others: tuple[Callable[[], Reference], ...] = ()

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: LossFunction | None = None,
        train: bool = True,
        draws: tuple[str, ...] = (),
        precision: str | None = None,
    ) -> Verifier:
        """Run the user's module in both precisions.

        ``draws`` and ``precision`` are as in ``Reference``; in double precision
        nothing is cast, but what asks whether it is autocast is told so.

        Raises:
            CaptureFailed: when the module itself fails.
        """
        if any(p.is_meta for p in model.parameters()):
            raise BadOptions(
                "verify needs the model's values, but it is on the meta device; "
                "materialize it, or verify a smaller one of the same architecture"
            )
        call = partial(Reference.of, model, args, kwargs, loss, train, draws, precision)
        try:
            with (noting := ConstantDtypes()):
                own = call()
        except RuntimeError as error:
            cast = f" under torch.autocast to {precision}" if precision else ""
            raise CaptureFailed(
                f"{type(model).__name__} fails when it is called as it is{cast}, which "
                f"is what a plan is compared with: {error}"
            ) from error
        model64 = doubled(model)
        promoting = promoting_floats(
            promote_arguments, promote_tensor, grouped_products()
        )
        try:
            with double_precision(), promoting, ConstantDtypes(noting.notes):
                args64, kwargs64 = pytree.tree_map(_promoted, (args, kwargs))
                double = Reference.of(
                    model64, args64, kwargs64, loss, train, draws, precision
                )
        except RuntimeError as error:
            raise CaptureFailed(
                f"{type(model).__name__} fails in double precision, in which a plan is "
                f"compared with it, too; an op of it may not take doubles: {error}"
            ) from error
        others = [partial(call, scale=scale) for scale in _SCALES]
        return cls(model, args, kwargs, loss, double, own, (*others,))

    def verify(self, plan: Plan, rules: RuleSet = default_rules) -> Report:
        """Carry out ``plan`` on all ranks in this process and compare.

        Raises:
            BadPlan: when the plan is of another model.
        """
        spec = describe(self.model, self.args, self.kwargs)
        captured = capture_for(self.model, plan, spec, self.loss, rules)
        return self.verify_captured(captured, plan, rules)

    @collection_paused()
    def verify_captured(
        self, captured: Captured, plan: Plan, rules: RuleSet = default_rules
    ) -> Report:
        """As ``verify``, for a program that has been captured already."""
        try:
            lowered, *others = lower(captured, plan, rules)
            if others:
                stages = (lowered, *others)
                return self._verify_stages(
                    VirtualStages.of(plan, stages, device_of(self.model))
                )
            ranks = lowered.of_all()
            bringing = [lowered.bringing_at(rank.coordinates) for rank in ranks]
            completing = [lowered.completing_at(rank.coordinates) for rank in ranks]
        except (InvariantViolation, PartitaError) as error:
            return Report.of_failure(error)
        report = self.verify_ranks(ranks, bringing, completing)
        is_told = report.failure or report.divergence
        if is_told or report.max_error <= DOUBLE_TOLERANCE:
            return report
        with double_precision():
            values = part_of_batch(ranks[0], self._values(double=True), 0)
            found = first_divergence(
                captured.program, lowered, promote_precision(ranks), values
            )
        return replace(report, divergence=found)

    def _verify_stages(self, stages: VirtualStages) -> Report:
        """Run a step of all stages and compare."""
        try:
            stages.check()
            with torch.no_grad():
                own = stages.run(self._values(double=False))
                with double_precision():
                    double = stages.promoted().run(self._values(double=True))
        except (InvariantViolation, RuntimeError, ValueError) as error:
            return Report.of_failure(error)
        tolerance = max(own_tolerance(stage.ranks[0]) for stage in stages.stages)
        return self._compared(_Found(own), _Found(double), tolerance)

    def verify_ranks(
        self,
        ranks: list[LocalProgram],
        bringing: Sequence[Sequence[LocalProgram]] = (),
        completing: Sequence[Sequence[LocalProgram]] = (),
    ) -> Report:
        """Run the programs of all ranks, in their order, and compare.

        ``bringing`` are, by rank, those that bring parameters from their optimizers,
        ``completing`` those that complete the sums over microbatches.
        """
        first = list(zip(*bringing, strict=True))
        last = list(zip(*completing, strict=True))
        try:
            for programs in (*first, ranks, *last):
                in_step(ranks[0].mesh, local_of_all(programs))
            own = self._run(ranks, first, last, double=False)
            with double_precision():
                first = [promote_precision(programs) for programs in first]
                last = [promote_precision(programs) for programs in last]
                double = self._run(promote_precision(ranks), first, last, double=True)
        except (InvariantViolation, RuntimeError, ValueError) as error:
            return Report.of_failure(error)
        return self._compared(own, double, own_tolerance(ranks[0]))

    def _compared(self, own: _Found, double: _Found, tolerance: float) -> Report:
        errors = double.errors(self.double)
        own_errors = own.errors(self.own)
        largest = max(errors.values(), default=0.0)
        ok, allowed = False, dict.fromkeys(own_errors, tolerance)
        for original in (lambda: self.own, *self.others):
            distance = self.double.distance(original())
            allowed = {
                name: max(known, 4.0 * distance.get(name, 0.0))
                for name, known in allowed.items()
            }
            ok = all(own_errors[name] <= allowed[name] for name in own_errors)
            if ok or largest > DOUBLE_TOLERANCE:
                break
        ok = ok and largest <= DOUBLE_TOLERANCE
        told = "" if ok else self._nans
        return Report(ok, largest, errors, own_errors, allowed, divergence=told)

    @property
    def _nans(self) -> str:
        """What the model itself makes that no plan can agree with."""
        for reference, where in (self.double, ""), (self.own, " in its own precision"):
            for name, value in reference.values.items():
                if value.isnan().any():
                    return (
                        f"the model itself makes NaN of {name!r}{where}, which nothing "
                        "equals; verify it with other inputs or other values"
                    )
        return ""

    def _run(
        self,
        ranks: list[LocalProgram],
        first: Sequence[Sequence[LocalProgram]],
        last: Sequence[Sequence[LocalProgram]],
        *,
        double: bool,
    ) -> _Found:
        values = self._values(double=double)
        device = device_of(self.model)
        brought: list[dict[FeedKey, torch.Tensor]] = [{} for _ in ranks]

        def feeds_of(number: int) -> list[dict[FeedKey, torch.Tensor]]:
            parts = part_of_batch(ranks[0], values, number)
            return [
                shards_of(local, parts) | own
                for local, own in zip(ranks, brought, strict=True)
            ]

        with torch.no_grad():
            for programs in first:
                held = [shards_of(local, values) for local in programs]
                made = run_all(programs, held, device=device)
                for own, copies in zip(brought, made, strict=True):
                    own |= copies_of(programs[0], copies)
            return _Found([(ranks, run_step(ranks, last, feeds_of, device))])

    def _values(self, *, double: bool) -> dict[FeedKey, torch.Tensor]:
        """Return the whole tensors that enter a program, by kind and name."""
        leaves = name_leaves(self.model, self.args, self.kwargs)
        values: dict[FeedKey, torch.Tensor] = {
            (InputKind.INPUT, name): leaf
            for name, leaf in leaves.items()
            if isinstance(leaf, torch.Tensor)
        }
        for name, parameter in self.model.named_parameters():
            values[InputKind.PARAMETER, name] = parameter.detach()
            if not parameter.requires_grad:  # one that the model writes to is a buffer
                values[InputKind.BUFFER, name] = parameter.detach()
        for name, buffer in self.model.named_buffers():
            values[InputKind.BUFFER, name] = buffer
        if double:
            values = {key: promote_tensor(value) for key, value in values.items()}
        return values


def _promoted(leaf: Any) -> Any:
    return promote_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


@dataclass(frozen=True)
class _Found:
    """The outputs of every rank, by stage, with what its ranks run."""

    stages: list[tuple[list[LocalProgram], dict[OutputRole, Left]]]

    def errors(self, reference: Reference) -> dict[str, float]:
        """Return the worst error over ranks: each shard against its part of the whole.

        Comparing every rank's own shard also catches copies that should be equal and
        are not.
        """
        worst: dict[str, float] = {}
        for ranks, outputs in self.stages:
            for role, left in outputs.items():
                name = _NAMES[role.kind].format(role.name)
                whole = reference.value(name)
                if whole is None and role.kind is OutputKind.GRADIENT:
                    whole = left.shards[0][0].new_zeros(_shape(ranks[0], role))
                worst[name] = float("inf")
                if whole is not None:
                    scale = reference.scale(name, whole)
                    worst[name] = max(_errors_of(ranks, left, whole, scale))
        for name in reference.values:
            worst.setdefault(name, float("inf"))
        return worst


def _shape(local: LocalProgram, role: OutputRole) -> tuple[int, ...]:
    type_ = local.output_types[local.outputs.index(role)]
    assert type_ is not None
    return type_.shape


def _errors_of(
    ranks: Sequence[LocalProgram], left: Left, whole: torch.Tensor, scale: float
) -> Iterator[float]:
    """Yield the error of every rank's shard, of every microbatch's part."""
    count = len(left.shards)
    for number, shards in enumerate(left.shards):
        part = whole
        if count > 1:
            time = Placement((left.join,))
            part = take_shard(whole, time, Mesh(**{AXIS: count}), (number,))
        for local, found in zip(ranks, shards, strict=True):
            own = take_shard(part, left.placement, local.mesh, local.coordinates)
            yield relative_error(found, own, scale)


_NAMES = {
    OutputKind.LOSS: "loss",
    OutputKind.OUTPUT: "output:{}",
    OutputKind.GRADIENT: "{}",
    OutputKind.MUTATED_BUFFER: "buffer:{}",
}


def verify(
    model: torch.nn.Module,
    *args: Any,
    plan: Plan,
    loss: LossFunction | None = None,
    rules: RuleSet = default_rules,
    **kwargs: Any,
) -> Report:
    """Check that ``plan`` computes what ``model`` computes.

    All ranks of the partitioned program run in this one process, on the model's own
    values and the inputs given; loss, outputs, every gradient and every mutated buffer
    are compared with the eager module's.

    Args:
        model: the module the plan was made for, with values.
        args: inputs, as the model is called with.
        plan: what is checked.
        loss: the function of ``Options(loss=...)`` for a plan loaded from a file.
        rules: the table that the plan was made with.
        kwargs: keyword inputs.

    Raises:
        BadOptions: when the plan's loss was a function and none is given.
        BadPlan: when the plan is of another model, or of other input shapes.
    """
    if not isinstance(cast(object, plan), Plan):
        raise BadOptions(
            f"plan is {plan!r}; want what pt.plan or pt.Plan.load returned"
        )
    loss = loss_of(plan, loss)
    spec = describe(model, args, kwargs)
    captured = capture_for(model, plan, spec, loss, rules)
    draws = captured.program.draws
    asked = plan.options
    verifier = Verifier.of(
        model, args, kwargs, loss, asked.train, draws, asked.precision
    )
    return verifier.verify_captured(captured, plan, rules)
