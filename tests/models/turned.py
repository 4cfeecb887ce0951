"""Plans of a machine that computes while messages pass: early gathers, late sums."""

from __future__ import annotations

from functools import cache, partial

from tests.compiler.search.hand_made import machine
from tests.models.captured import captured
from tests.models.searched import searched
from tests.models.storage_pins import storage_pins

import partita as pt
from partita.compiler.search.turns import with_turns
from partita.one_mesh.planner import Planner
from partita.whole_plans.bucketed import with_buckets
from partita.whole_plans.recount import with_memory

MACHINE = partial(machine, launch_s=1e-7, memory_bytes_per_s=3e9, alpha_s=2e-5)


@cache
def planner(kind: str, overlap: float = 0.9, again: bool = False) -> Planner:
    """Return what plans a small GPT-2 whose parameters are held in a way, by pins."""
    built, known = captured("gpt2")
    hardware = MACHINE(bytes_per_s=3e8, overlap=overlap)
    recompute = ("parameter:*",) if again else ()
    pins = storage_pins(built, kind, 1)
    options = pt.Options(pins=pins, hardware=hardware, recompute=recompute)
    return Planner(known, "gpt2", pt.Mesh(dp=2), options)


@cache
def plain(kind: str, overlap: float = 0.9, again: bool = False) -> pt.Plan:
    """Return the plan whose messages are waited for at once."""
    return searched(planner(kind, overlap, again))


@cache
def turned(kind: str, again: bool = False, bucket: int = 0) -> pt.Plan:
    """Return the plan whose messages start ahead, or are waited for late."""
    plan = plain(kind, again=again)
    return with_buckets(plan, bucket) if bucket else with_memory(with_turns(plan))
