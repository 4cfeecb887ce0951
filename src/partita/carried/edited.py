"""A plan's file that was edited by hand: read, its boxings as its placements want."""

from __future__ import annotations

from dataclasses import replace

from partita.compiler.errors import BadPlan
from partita.compiler.json_file import read_json
from partita.compiler.plan.check import check, check_nodes
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.store import check_form, decode_document
from partita.compiler.plan.units import printable
from partita.compiler.search.mended import Mended, with_wanted_boxings


def load_edited(path: str) -> tuple[Plan, Mended]:
    """Read a plan in which placements may have been edited, and no boxings.

    Raises:
        BadPlan: as ``Plan.load`` does, of all but the boxings; for placements that no
            boxing leads between.
    """
    data, where = read_json(path, BadPlan)
    try:
        check_form(data, where)
        plan = decode_document(Plan, data, where)
        check_nodes(replace(plan, buckets=()), where)  # of boxings that may be lost
        plan, mended = with_wanted_boxings(plan)
        check(plan, where)
    except BadPlan as error:  # keys of a stranger's document stand in the message
        raise BadPlan(printable(str(error))) from None
    return plan, mended
