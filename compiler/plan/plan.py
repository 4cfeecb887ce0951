"""The plan: a document that loads, saves, prints and explains itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from partita.compiler.capture.scored_model import LossFunction
from partita.compiler.collection import collection_paused
from partita.compiler.cost.memory import timeline
from partita.compiler.cost.timeline import Timeline
from partita.compiler.errors import BadPlan
from partita.compiler.json_file import read_json
from partita.compiler.plan.check import check
from partita.compiler.plan.difference import Difference, find_difference
from partita.compiler.plan.document import Document
from partita.compiler.plan.explain import explain
from partita.compiler.plan.notebook import plan_html
from partita.compiler.plan.stages import stage_documents
from partita.compiler.plan.store import (
    check_form,
    decode_document,
    encode_document,
    write_json,
)
from partita.compiler.plan.table import print_tables
from partita.compiler.plan.units import printable

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Document):
    """What was decided for one model on one mesh; see ``Document`` for its parts.

    ``loss_function`` is what ``Options(loss=...)`` named; no file holds it.
    """

    loss_function: LossFunction | None = field(
        default=None, compare=False, repr=False, metadata={"json": None}
    )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan, from whomever it comes: nothing in it is executed.

        Raises:
            BadPlan: naming the file, the key, what was found and what is wanted.
        """
        with collection_paused():
            data, where = read_json(path, BadPlan)
            return cls._decode(data, where)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Build a plan from what ``to_dict`` returned.

        Raises:
            BadPlan: naming the key, what was found and what is wanted.
        """
        return cls._decode(data, "plan")

    @classmethod
    def _decode(cls, data: Any, where: str) -> Plan:
        try:
            check_form(data, where)
            plan = decode_document(cls, data, where)
            check(plan, where)
        except BadPlan as error:  # keys of a stranger's document stand in the message
            raise BadPlan(printable(str(error))) from None
        return plan

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return encode_document(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON, one node a line, keys sorted."""
        write_json(path, self.to_dict())

    def validate(self) -> None:
        """Check that every reference, placement and size in the plan holds.

        Raises:
            BadPlan: naming the first key that does not hold.
        """
        check(self, "plan")

    def explain(self, name: str) -> str:
        """Return why the parameter, buffer, input or node ``name`` is placed so.

        Raises:
            BadOptions: for an unknown name, with those closest to it.
        """
        return explain(self, name)

    def diff(self, other: Document) -> Difference:
        """Return what moved from this plan to ``other``, and the price of it."""
        return find_difference(self, other)

    def graph(self) -> nx.MultiDiGraph[str]:
        """Return nodes and tensors as a graph; see graph.py for the attributes."""
        # networkx, which comes with it, is nothing that a rank needs.
        from partita.compiler.plan.graph import build_graph

        return build_graph(self)

    def memory(self) -> Timeline:
        """Return what the rank that needs most holds at each moment of a step.

        In a pipeline these are the moments of one microbatch in the stage that needs
        most for it.
        """
        found = map(timeline, stage_documents(self))
        return max(found, key=lambda held: held.peak_bytes)

    def __str__(self) -> str:
        return print_tables(self)

    def __repr__(self) -> str:
        first, *_ = str(self).splitlines()
        return f"<Plan of {first}>"

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        return plan_html(self)
