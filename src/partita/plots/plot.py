"""``plot``: a figure of a plan, and the file of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.compiler.errors import BadOptions
from partita.compiler.plan.plan import Plan
from partita.compiler.simulate.timetable import make_timetable
from partita.plots.scaling import BATCH, scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Plot(StrEnum):
    """What can be drawn of a plan."""

    MEMORY = "memory"
    TIMELINE = "timeline"
    SCALING = "scaling"


_WITHOUT_DATES: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""By suffix, metadata that make the file the same each time."""


def plot(
    plan: Plan,
    what: str,
    path: str | PathLike[str] | None = None,
    *,
    along: str = BATCH,
    sizes: Sequence[int] | None = None,
) -> Figure:
    """Draw a plan with matplotlib; return the figure, which is also saved at ``path``.

    Args:
        plan: what is drawn.
        what: ``memory`` of a rank by category over the step, ``timeline`` of the
            simulated step, or ``scaling``, the step's seconds over the batch or the
            ranks of an axis, all decisions kept.
        path: a file that ends in .png, .svg or .pdf.
        along: of ``scaling``: ``batch``, or an axis of the mesh.
        sizes: of ``scaling``: the batches or numbers of ranks.

    Raises:
        BadOptions: for another ``what``, suffix or size, or without matplotlib.
    """
    if what not in [*Plot]:
        raise BadOptions(f"{what!r} is no plot; want one of {', '.join(Plot)}")
    suffix = None if path is None else Path(path).suffix
    if suffix is not None and suffix not in _WITHOUT_DATES:
        raise BadOptions(
            f"{fspath(path or '')}: want a file that ends in "
            f"{', '.join(_WITHOUT_DATES)}"
        )
    try:
        from matplotlib import rc_context

        from partita.plots import draw
    except ImportError as error:
        raise BadOptions(
            "plots are drawn by matplotlib, which cannot be imported "
            f"({error}); want: pip install matplotlib"
        ) from None
    # Names come from strangers: "$" in them is no formula.
    with rc_context({"text.parse_math": False, "svg.hashsalt": "partita"}):
        if what == Plot.SCALING:
            figure = draw.draw_scaling(plan, scale(plan, along, sizes))
        else:
            drawn = draw.draw_memory if what == Plot.MEMORY else draw.draw_timeline
            figure = drawn(plan, make_timetable(plan))
        if path is not None and suffix is not None:
            try:
                figure.savefig(path, metadata=_WITHOUT_DATES[suffix], dpi=200)
            except OSError as error:
                why = error.strerror or type(error).__name__
                raise BadOptions(f"{fspath(path)}: cannot be written: {why}") from None
    return figure
