"""Problems of so few assignments that every way to keep to a limit can be tried."""

from __future__ import annotations

import random

from tests.compiler.search.all_ways import thinned
from tests.compiler.search.hand_made import RandomModel, machine, planner

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.pose import Posed
from partita.compiler.search.solver import solve

_MESHES = (Mesh(tp=2), Mesh(dp=2, tp=2))
_MOST = 700  # assignments of one problem, each with all that it can make again


def small(seed: int, make: type[RandomModel] = RandomModel) -> tuple[Posed, str]:
    """Return a problem of a random model of up to 8 ops, and an optimizer."""
    model = make(seed, 8)
    slow = machine(flops_per_s=1e7, bytes_per_s=1e6)
    posed = planner(
        model,
        model.inputs(),
        mesh=_MESHES[seed % 2],
        hardware=slow if seed % 3 else machine(),
    ).posed
    free = solve(posed.problem, 60)
    optimizer = random.Random(seed).choice(["sgd", "adamw"])
    return thinned(posed, free.choices, _MOST, seed), optimizer
