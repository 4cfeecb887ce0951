"""``plan``: capture a model, search its placements, write down what was decided."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import torch

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.errors import BadMesh, NoSolution
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.document import LossKind, PlanOptions, SearchResult
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import format_bytes, parse_bytes
from partita.compiler.search.by_axes import Choose, choose_by_axes, steps_of
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.chosen import read_choices
from partita.compiler.search.decide import Found, decide
from partita.compiler.search.draw import draw_again, draw_choices
from partita.compiler.search.fold import Fold
from partita.compiler.search.fusion import add_fusion
from partita.compiler.search.pose import Posed, pose
from partita.compiler.search.solver import Solution, solve
from partita.options import Options
from partita.passes.expand_ops import ExpandOps
from partita.passes.recompute import Recompute
from partita.rules_for import rules_for
from partita.version import __version__

ALIKE = "equal blocks alike"
"""Says in a plan that the optimum is that of plans in which layers do not differ."""


@dataclass(frozen=True)
class Planner:
    """One captured model on one mesh; makes plans of it, searched or drawn.

    ``plan`` uses it once; tests and tools that want several plans of one model on one
    mesh keep it, since capturing and posing take longer than deciding.
    """

    captured: Captured
    class_name: str
    mesh: Mesh
    options: Options

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
        captured = capture(model, args, kwargs, loss=options.loss, train=options.train)
        return cls(captured, type(model).__name__, mesh, options)

    @cached_property
    def posed(self) -> Posed:
        """The search problem on all axes at once."""
        options, program = self.options, self.captured.program.with_mesh(self.mesh)
        hardware = load_hardware(options.hardware)
        candidates = Candidates(program, options.rules, self.mesh, hardware)
        return pose(candidates, options.pins, options.optimizer)

    def search(self) -> Plan:
        """Return the cheapest plan that the solver finds in its time."""
        started = time.perf_counter()
        steps = len(steps_of(self.mesh))
        solved: list[Solution] = []
        ways: list[str] = ["axis by axis"] if steps > 1 else []

        def choose(posed: Posed) -> Sequence[int]:
            fold = Fold.of(posed.problem)
            if fold.has_classes and ALIKE not in ways:
                ways.append(ALIKE)
            limit_s = self.options.time_limit / steps
            solved.append(solve(posed.problem, limit_s, fold=fold))
            return solved[-1].choices

        posed, choices = self._choose(choose)
        last = solved[-1]
        result = SearchResult(
            ", ".join([last.solver, *ways]),
            last.status if steps == 1 else "not compared with all",
            last.gap if steps == 1 else None,
            time.perf_counter() - started,
        )
        asked = self.options.recompute
        return self.decide(Found(choices, result, asked=asked), posed)

    def random(self, seed: int) -> Plan:
        """Return a plan of choices drawn at random among all that are legal."""
        rng = random.Random(seed)
        posed, choices = self._choose(partial(draw_choices, rng))
        result = SearchResult("random", "drawn", None, 0.0)
        chosen = read_choices(self.captured.program, posed, choices)
        again = draw_again(rng, chosen)
        return self.decide(Found(choices, result, again), posed)

    def _choose(self, choose: Choose) -> tuple[Posed, Sequence[int]]:
        """Return a posed problem of the mesh and a choice per node of it."""
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
        )

    def decide(self, found: Found, posed: Posed | None = None) -> Plan:
        """Return the plan of one assignment; ``posed`` is the problem it is of.

        Raises:
            NoSolution: when it is predicted to need more than ``Options(memory=)``.
        """
        options = self.options
        limit = None if options.memory is None else parse_bytes(options.memory)
        plan = decide(
            self.captured,
            posed or self.posed,
            found,
            version=__version__,
            class_name=self.class_name,
            options=PlanOptions(
                loss=LossKind.CALLABLE if options.loss else LossKind.OUTPUT,
                train=options.train,
                optimizer=options.optimizer,
                memory_bytes=limit,
                pins={name: str(pin) for name, pin in options.pins.items()},
            ),
        )
        if limit is not None and plan.predicted.bytes > limit:
            raise NoSolution(
                f"memory: the fastest plan is predicted to need "
                f"{format_bytes(plan.predicted.bytes)} on a rank, the limit is "
                f"{format_bytes(limit)}; use a larger mesh or pin parameters to a split"
            )
        if options.fuse:
            program = ExpandOps(plan, options.rules).run(self.captured.program)
            program = Recompute(plan).run(program)
            plan = add_fusion(plan, program, options.rules)
        return replace(plan, loss_function=options.loss)


def plan(
    model: torch.nn.Module,
    *args: Any,
    mesh: Mesh | str | None = None,
    options: Options | None = None,
    devices: int | None = None,
    **kwargs: Any,
) -> Plan:
    """Decide how ``model`` runs on ``mesh``: the placement of every tensor.

    Args:
        model: any module that ``torch.export`` can capture, on the meta device too.
        args: example inputs of ONE global batch, as the model is called with.
        mesh: the logical mesh, slowest links first.
        options: see ``Options``.
        devices: in place of ``mesh``, a number of ranks: meshes of one and two axes
            (``dp``, ``tp``) are tried, and the one with the fastest plan is taken.
        kwargs: example keyword inputs.

    Raises:
        BadMesh: when there is neither ``mesh`` nor ``devices``.
        CaptureFailed: when the model cannot be captured.
        BadOptions, NoSolution: for options that cannot be followed.
        BadRule: for a rule in ``options`` that does not hold.
    """
    if (mesh is None) == (devices is None):
        raise BadMesh("give either mesh=Mesh(dp=2, ...) or devices=N")
    if isinstance(mesh, str):
        mesh = Mesh.parse(mesh)
    if mesh is not None and not isinstance(cast(object, mesh), Mesh):
        raise BadMesh(f"mesh is {mesh!r}; want Mesh(dp=2, ...) or text like 'dp=2'")
    if mesh is not None and "pp" in mesh.names:
        raise BadMesh(
            f"mesh {mesh}: axis 'pp' carries pipeline stages, which this version does "
            "not cut; leave it out, or name the axis dp or tp"
        )
    options = options or Options()
    captured = capture(model, args, kwargs, loss=options.loss, train=options.train)
    options = replace(options, rules=rules_for(captured.program, options.rules))
    meshes = _meshes(devices) if mesh is None else [mesh]
    plans = [
        Planner(captured, type(model).__name__, tried, options).search()
        for tried in meshes
    ]
    return min(plans, key=lambda found: found.predicted.seconds)


def _meshes(devices: int | None) -> list[Mesh]:
    """Return the meshes of one and two axes that ``devices`` ranks can form."""
    if type(devices) is not int or devices < 1:
        raise BadMesh(f"devices is {devices!r}; want a number of ranks, at least 1")
    pairs = [(n, devices // n) for n in range(2, devices) if devices % n == 0]
    return [Mesh(dp=devices), *(Mesh(dp=dp, tp=tp) for dp, tp in pairs)]
