"""One captured model on one mesh: plans of it, searched or drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.collection import collection_paused
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.document import LossKind, PlanOptions
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.units import parse_bytes
from partita.compiler.search.by_axes import Choose, choose_by_axes, steps_of
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.chosen import read_choices
from partita.compiler.search.decide import (
    MOST_ALTERNATIVES,
    Found,
    counted,
    draft,
)
from partita.compiler.search.draw import draw_again, draw_choices, draw_held
from partita.compiler.search.fusion import add_fusion
from partita.compiler.search.known_prices import KnownPrices
from partita.compiler.search.pose import Posed, pose
from partita.compiler.search.told import with_alternatives
from partita.microbatched import in_microbatches
from partita.one_mesh.decided import Decided
from partita.options import Options
from partita.passes.expand_ops import ExpandOps
from partita.passes.recompute import Recompute
from partita.version import __version__


@dataclass(frozen=True)
class Planner:
    """One captured model on one mesh; makes plans of it, searched or drawn.

    Who wants several plans of one model on one mesh keeps it: capturing and posing take
    longer than deciding. ``known`` is what was priced, by mesh: those that ``replace``
    makes of it share that.
    """

    captured: Captured
    class_name: str
    mesh: Mesh
    options: Options
    known: dict[Mesh, KnownPrices] = field(
        default_factory=dict[Mesh, KnownPrices], compare=False, repr=False
    )

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mesh: Mesh,
        options: Options,
    ) -> Planner:
        """Capture ``model``, to be planned on ``mesh``; see ``plan``."""
        with collection_paused():
            captured = capture(
                model,
                args,
                kwargs,
                loss=options.loss,
                train=options.train,
                precision=options.precision,
            )
        if isinstance(options.microbatches, int):
            captured = in_microbatches(captured, options.microbatches, options.rules)
        return cls(captured, type(model).__name__, mesh, options)

    @cached_property
    def posed(self) -> Posed:
        """The search problem on all axes at once."""
        options, program = self.options, self.captured.program.with_mesh(self.mesh)
        hardware = load_hardware(options.hardware)
        candidates = Candidates(
            program,
            options.rules,
            self.mesh,
            hardware,
            known=self.known.get(self.mesh),
            reading=self.captured.reading,
        )
        self.known[self.mesh] = candidates.known
        return pose(candidates, options.pins, options.optimizer, options.wide_sums)

    @cached_property
    def limit(self) -> int | None:
        """The bytes that one rank may use."""
        memory = self.options.memory
        return None if memory is None else parse_bytes(memory)

    @collection_paused()
    def decided(self, decided: Decided) -> Plan:
        """Return the plan of what was decided for a program like this one."""
        steps = iter(decided.steps)
        posed, _ = self.choose(lambda _: next(steps))
        again = decided.again_in(posed)
        recompute = self.options.recompute
        return self.decide(Found(decided.last, decided.result, again, recompute), posed)

    @collection_paused()
    def random(self, seed: int) -> Plan:
        """Return a plan of choices drawn at random among all that are legal.

        It states no alternatives: next to what was drawn they say nothing.
        """
        rng = random.Random(seed)
        posed, choices = self.choose(partial(draw_choices, rng))
        result = SearchResult("random", "drawn", None, 0.0)
        chosen = read_choices(self.captured.program, posed, choices)
        again, held = draw_again(rng, chosen), draw_held(rng, posed)
        found = Found(choices, result, again, held=held, most_alternatives=0)
        return self.decide(found, posed)

    def choose(self, choose: Choose) -> tuple[Posed, Sequence[int]]:
        """Return a posed problem of the mesh and a choice per node of it.

        ``choose`` picks the choices of a posed problem; it is asked once per step.
        """
        if len(steps_of(self.mesh)) == 1:
            return self.posed, choose(self.posed)
        options = self.options
        return choose_by_axes(
            self.captured.program,
            options.rules,
            self.mesh,
            load_hardware(options.hardware),
            options.pins,
            options.optimizer,
            choose,
            options.wide_sums,
        )

    def decide(self, found: Found, posed: Posed | None = None) -> Plan:
        """Return the plan of one assignment; ``posed`` is the problem it is of."""
        return self._finished(counted(self._draft(found, posed)))

    def uncounted(self, found: Found, posed: Posed | None = None) -> Plan:
        """Return the plan of ``decide``, messages one by one.

        What it holds is counted only where calls are fused, which asks for it.
        """
        return self._finished(self._draft(found, posed))

    def draft(self, found: Found) -> Plan:
        """Return a plan that is only to be compared: no alternatives, no memory."""
        return self.uncounted(replace(found, most_alternatives=0))

    def _draft(self, found: Found, posed: Posed | None) -> Plan:
        options = self.options
        return draft(
            self.captured,
            posed or self.posed,
            found,
            version=__version__,
            class_name=self.class_name,
            options=PlanOptions(
                loss=LossKind.CALLABLE if options.loss else LossKind.OUTPUT,
                train=options.train,
                optimizer=options.optimizer,
                memory_bytes=self.limit,
                pins={name: str(pin) for name, pin in options.pins.items()},
                precision=options.precision,
                fuse=options.fuse,
            ),
        )

    def _finished(self, plan: Plan) -> Plan:
        if self.options.fuse:
            program = ExpandOps(plan, self.options.rules).run(self.captured.program)
            program = Recompute(plan).run(program)
            plan = add_fusion(plan, program, self.options.rules)
        return replace(plan, loss_function=self.options.loss)

    def with_alternatives(self, draft: Plan, choices: Sequence[int]) -> Plan:
        """Return a draft on all axes at once with what its nodes could have been."""
        return with_alternatives(draft, self.posed, choices, MOST_ALTERNATIVES)
