"""Plans as one mesh is searched for them."""

from __future__ import annotations

from partita.compiler.plan.plan import Plan
from partita.compiler.search.parts import Clock
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search


def searched(planner: Planner) -> Plan:
    """Return the fastest plan that is found in the time that the options allow."""
    return Search(planner, Clock.of(planner.options.time_limit)).run()
