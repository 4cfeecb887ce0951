"""What this machine reaches now, on some local ranks."""

from __future__ import annotations

import partita as pt
from partita.cli.calibrate import measure_rank
from partita.compiler.hardware.fit import fit_hardware
from partita.runtime.launch import launch


def this_machine(ranks: int, axis: str = "tp") -> pt.Hardware:
    """Return what ``partita calibrate`` finds on a mesh of one axis."""
    mesh = pt.Mesh(**{axis: ranks})
    measured = launch(measure_rank, ranks, (str(mesh), False))[0]
    return fit_hardware(measured, mesh, "measured")
