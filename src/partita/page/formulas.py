"""The formulas behind a plan's prices, for the page: each text once, as in ``explain``.

Layers repeat, and so do their calls: of those alike one is worked out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from partita.compiler.cost.formulas import Formula
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.explain_formula import (
    call_formula,
    say_formula,
    step_formula,
)
from partita.compiler.plan.stages import stage_documents
from partita.compiler.plan.uses import type_of


def formulas_data(document: Document) -> dict[str, Any]:
    """Return the formulas of a plan as plain JSON values.

    ``texts`` are pairs: a formula with its value, what its symbols stand for. ``calls``
    has the number of a call's by its key, ``steps`` those of a boxing's collectives, by
    its key; ``None`` stands for a step that has none.
    """
    texts = _Texts()
    calls: dict[str, int] = {}
    steps: dict[str, list[int | None]] = {}
    for own in stage_documents(document):
        for key in own.nodes:
            number = texts.of_call(own, key)
            if number is not None:
                calls[key] = number
        for boxing in own.boxings:
            numbers = [
                texts.of_step(own, boxing, n) for n in range(len(boxing.lowering))
            ]
            if any(number is not None for number in numbers):
                steps[boxing.key] = numbers
    return {"texts": texts.rows, "calls": calls, "steps": steps}


class _Texts:
    """Formulas as text, each once, and which it is that alike things have."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._known: dict[Hashable, int | None] = {}

    def of_call(self, document: Document, key: str) -> int | None:
        node = document.nodes[key]
        if node.role is not None:
            return None
        operands = tuple(type_of(document, ref) for ref in node.operands)
        alike = (node.op, node.constants, operands, node.types, node.signature)
        return self._number(
            (document.mesh, *alike, node.seconds), lambda: call_formula(document, key)
        )

    def of_step(self, document: Document, boxing: Boxing, number: int) -> int | None:
        alike = (type_of(document, boxing.ref), boxing.source, boxing.lowering, number)
        return self._number(
            (document.mesh, *alike), lambda: step_formula(document, boxing, number)
        )

    def _number(
        self, alike: Hashable, find: Callable[[], Formula | None]
    ) -> int | None:
        if alike not in self._known:
            formula = find()
            self._known[alike] = (
                None
                if formula is None or formula.expr == 0
                else self._row(say_formula(formula))
            )
        return self._known[alike]

    def _row(self, text: tuple[str, str]) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.rows)
            self.rows.append(text)
        return self._numbers[text]
