"""``plan``: capture a model, search its placements, write down what was decided.

Which mesh, where a number of devices is given, and into how many microbatches the batch
is cut are decided here; a ``Planner`` decides everything else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, cast

import torch

from partita.compiler.capture.capture import Captured, capture, capture_spec
from partita.compiler.capture.inputs import InputSpec
from partita.compiler.collection import collection_paused
from partita.compiler.errors import BadMesh, BadOptions, NoSolution
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import MOST_RANKS, Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import Tried
from partita.compiler.plan.units import (
    format_bytes,
    format_seconds,
    parse_bytes,
    shown,
)
from partita.compiler.search.arrange import Best
from partita.compiler.search.parts import Clock
from partita.one_mesh.batch import Batch
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.planner import Planner
from partita.one_mesh.ways_out import Refused
from partita.options import Options
from partita.pipelines.outlines import are_too_many, counts_in_order
from partita.pipelines.pipeline_search import PipelineSearch
from partita.pipelines.pipeline_space import PipelineSpace, meshes_for, meshes_of
from partita.pipelines.staged import PIPELINE, SINGLE, stage_mesh
from partita.whole_plans.beside_search import First
from partita.whole_plans.bucketed import with_buckets
from partita.whole_plans.by_counts import CountSearch
from partita.whole_plans.light_messages import fastest_together

_log = logging.getLogger(__name__)


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
            (``dp``, ``tp``) are tried, and pipelines, whose stages may each have a
            mesh of their own, as far as the pins fit them; the fastest plan is taken,
            and says what was tried.
            They share ``Options(time_limit=)``.
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
    options = options or Options()
    if mesh is not None and PIPELINE not in mesh.names:
        _check_no_stages(options)
    is_one_mesh = mesh is not None and PIPELINE not in mesh.names
    with collection_paused() if is_one_mesh else nullcontext():
        begun = time.perf_counter()
        captured = _captured(model, args, kwargs, options)
        capturing_s = time.perf_counter() - begun
        if mesh is None:
            meshes, space = _of_devices(devices, options)
        else:
            meshes, space = [mesh], None
        batch = Batch(captured, type(model).__name__, options)
        compared = _Compared(batch, Clock.of(options.time_limit))
        num_calls = sum(1 for _ in captured.program.calls())
        if space is not None and are_too_many(space, num_calls, options.time_limit):
            compared.try_stages(space)
            compared.try_meshes(meshes, capturing_s)
        else:
            for number, tried in enumerate(meshes):
                others = 0 if space is None else len(meshes)
                compared.try_mesh(tried, len(meshes) - number + others)
            if space is not None:
                compared.try_stages(space)
        if compared.fastest is not None:
            return compared.result

    def attempt(captured: Captured, mesh: Mesh, options: Options) -> Plan:
        other = Batch(captured, type(model).__name__, options)
        return _fastest(other, mesh, Clock.of(options.time_limit)).plan

    def recapture(spec: InputSpec) -> Captured:
        return capture_spec(
            model,
            spec,
            loss=options.loss,
            train=options.train,
            precision=options.precision,
        )

    refusal, tried = min(compared.refusals, key=lambda pair: pair[0].least_bytes or 0)
    clock = Clock.of(options.time_limit)
    refused = Refused(captured, tried, options, attempt, recapture, clock)
    raise refused.explained(refusal)


def _captured(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Options,
) -> Captured:
    started = time.perf_counter()
    with collection_paused():
        captured = capture(
            model,
            args,
            kwargs,
            loss=options.loss,
            train=options.train,
            precision=options.precision,
        )
    num_calls = sum(1 for _ in captured.program.calls())
    spent = format_seconds(time.perf_counter() - started)
    _log.info("captured %d calls in %s", num_calls, spent)
    return captured


def _in_buckets(batch: Batch, first: First, clock: Clock) -> Plan:
    """Return the plan with what is sent together, or one faster so."""
    bucket = parse_bytes(batch.options.bucket) if batch.options.bucket else 0
    plan = first.plan
    if len(plan.stages) > 1:
        return with_buckets(plan, bucket) if bucket else plan
    planner = batch.planner(plan.microbatches, plan.mesh)
    return fastest_together(planner, first, bucket, clock.share(1.0))


def _of_devices(
    devices: int | None, options: Options
) -> tuple[list[Mesh], PipelineSpace | None]:
    """Return the meshes and the pipelines of so many ranks, as far as asked for."""
    if type(devices) is not int or not 1 <= devices <= MOST_RANKS:
        raise BadMesh(
            f"devices is {shown(devices)}; want a number of ranks, from 1 to "
            f"{MOST_RANKS}"
        )
    turns = options.stages_per_rank
    is_staged = options.schedule not in ("auto", "sequential")
    is_staged |= isinstance(turns, int) and turns > 1
    is_one = options.schedule == "sequential" or (devices == 1 and not is_staged)
    meshes = [] if is_staged else [*meshes_for(devices, options)]
    space = None if is_one else PipelineSpace.of_devices(devices, options)
    if space is not None and not space.sizes and options.pins:
        space = None
    if not meshes and space is None:
        known = " or ".join(map(str, meshes_of(devices)))
        raise BadOptions(
            f"pins: they name axes, or as many, that no mesh of {devices} ranks has "
            f"({known}); give a mesh in place of devices"
        )
    return meshes, space


def _check_no_stages(options: Options) -> None:
    """Check that nothing is asked of stages, where there are none."""
    turns = options.stages_per_rank
    is_one = turns in ("auto", 1)
    if options.schedule not in ("auto", "sequential") or not is_one:
        raise BadOptions(
            f"schedule is {options.schedule!r}, with {turns} stages on a rank, but the "
            f"mesh has no axis {PIPELINE!r}; want one, first, like {PIPELINE}=2,dp=2"
        )


def _summary(plan: Plan) -> str:
    """Return what a search found, in a line; a draft does not say what it holds."""
    told = [f"{format_seconds(plan.predicted.seconds)} a step"]
    if plan.predicted.bytes:
        told.append(f"{format_bytes(plan.predicted.bytes)} on a rank")
    spent = format_seconds(plan.search.seconds)
    return ", ".join([*told, plan.search.status, f"after {spent}"])


@dataclass
class _Compared:
    """The fastest plan of those that were found, what was tried, who refused.

    Plans are compared in buckets. What a search has to be faster than are ``apart_s``
    of the fastest, its messages sent one by one: it sends its own so. Where buckets are
    slower, it is what the fastest takes in them.
    """

    batch: Batch
    clock: Clock
    fastest: Plan | None = None
    apart_s: float = inf
    tried: list[Tried] = field(default_factory=list[Tried])
    refusals: list[tuple[NoSolution, Mesh]] = field(
        default_factory=list[tuple[NoSolution, Mesh]]
    )

    @property
    def result(self) -> Plan:
        """The fastest plan; where several were compared, with what was tried."""
        assert self.fastest is not None
        if len(self.tried) == 1:
            return self.fastest
        search = replace(self.fastest.search, tried=tuple(self.tried))
        return replace(self.fastest, search=search)

    def try_mesh(self, mesh: Mesh, parts: int) -> None:
        """Plan on a mesh, in one of so many equal parts of the time that is left."""
        if self.fastest is not None and self.clock.left_s <= 0:
            self.tried.append(Tried(f"mesh {mesh}", None))
            return
        share = self.clock.share(1 / parts)
        try:
            first = _fastest(self.batch, mesh, share, self.apart_s)
        except NotFaster as other:
            self.tried.append(Tried(f"mesh {mesh}", other.seconds))
            return
        except NoSolution as refusal:
            self._refuse(f"mesh {mesh}", refusal, mesh)
            self.tried.append(Tried(f"mesh {mesh}", None))
            return
        found = self._offer(f"mesh {mesh}", first, share)
        row = Tried(f"mesh {mesh}", found.predicted.seconds)
        self.tried += found.search.tried or (row,)

    def try_meshes(self, meshes: Sequence[Mesh], least_s: float) -> None:
        """Plan on meshes while that may end in time, if it takes so long for each."""
        for number, mesh in enumerate(meshes):
            if self.fastest is not None and self.clock.left_s < least_s:
                self.tried.append(Tried(f"mesh {mesh}", None))
            else:
                self.try_mesh(mesh, len(meshes) - number)

    def try_stages(self, space: PipelineSpace) -> None:
        """Plan pipelines that are faster than what was found, in the time left."""
        name = f"stages on {sum(space.sizes[0])} ranks"
        for batch, part in self._batches_for_stages():
            clock = self.clock.share(part)
            search = _pipelines(batch, space, clock, self.apart_s)
            try:
                found = First(search.run())
            except NoSolution as refusal:
                self._refuse(name, refusal, Mesh(**{PIPELINE: sum(space.sizes[0])}))
            else:
                if batch is not self.batch:
                    continue  # one that keeps to the limit is another, or slower
                self._offer(name, found, clock)
            self.tried += search.tried or (Tried(name, None),)
            return

    def _batches_for_stages(self) -> Iterator[tuple[Batch, float]]:
        """Yield what pipelines are searched for, with a part of the time left.

        Where the fastest plan keeps to a memory limit that does not hold it up, they
        are looked for without the limit first, which takes less: where none is faster,
        none that keeps to it is.
        """
        options, fastest = self.batch.options, self.fastest
        if options.memory is not None and fastest is not None:
            if fastest.search.memory_price == 0:
                free = replace(options, memory=None)
                yield Batch(self.batch.captured, self.batch.class_name, free), 0.5
        yield self.batch, 1.0

    def _offer(self, name: str, first: First, clock: Clock) -> Plan:
        """Take up a plan, or one faster in buckets; return which."""
        found = _in_buckets(self.batch, first, clock)
        _log.info("%s: %s", name, _summary(found))
        fastest = self.fastest
        if fastest is None or found.predicted.seconds < fastest.predicted.seconds:
            self.fastest = found
            seconds = found.predicted.seconds, first.plan.predicted.seconds
            self.apart_s = max(seconds)
        return found

    def _refuse(self, name: str, refusal: NoSolution, mesh: Mesh) -> None:
        self.refusals.append((refusal, mesh))
        _log.info("%s: no plan: %s", name, refusal)


def _fastest(
    batch: Batch,
    mesh: Mesh,
    clock: Clock,
    known_s: float = inf,
) -> First:
    """Return the fastest plan on ``mesh``, of the microbatches that are asked for.

    Of one without a memory limit others are to be compared with what is returned
    (``_in_buckets``).

    Raises:
        NoSolution: when no plan was found that keeps to the memory limit.
        NotFaster: when none takes less than ``known_s``.
    """
    if PIPELINE in mesh.names:
        inner = stage_mesh(mesh)
        turns = batch.options.stages_per_rank
        if inner.size < mesh.size or (isinstance(turns, int) and turns > 1):
            space = PipelineSpace.of_stages(mesh.sizes[0], inner, batch.options)
            return First(_pipelines(batch, space, clock).run())
        mesh = inner
    return CountSearch(batch, mesh, clock, known_s).run()


def _pipelines(
    batch: Batch, space: PipelineSpace, clock: Clock, bound_s: float = inf
) -> PipelineSearch:
    """Return the search for a pipeline of what is asked for, faster than a bound.

    Unless told, all numbers are tried that the batch can be cut into, those first that
    give each row a few.
    """
    asked = batch.options.microbatches
    if isinstance(asked, int):
        counts = [asked]
    elif not batch.options.train:
        counts = [1]
    else:
        node = load_hardware(batch.options.hardware).devices_per_node
        counts = counts_in_order(batch.captured, space, node, clock.left_s)
    planners = _planners(batch, space, counts)
    return PipelineSearch(planners, space, clock, Best(seconds=bound_s))


def _planners(
    batch: Batch, space: PipelineSpace, counts: Sequence[int]
) -> Iterator[Planner]:
    """Yield what plans the program of one microbatch, of each number that can be.

    Raises:
        BadOptions: when none of the numbers can be.
    """
    refusal: BadOptions | None = None
    is_any = False
    for count in counts:
        try:
            space.check_count(count)
            planner = batch.planner(count, SINGLE)
        except BadOptions as found:
            refusal = found
            continue
        is_any = True
        yield planner
    if refusal is not None and not is_any:
        raise refusal
