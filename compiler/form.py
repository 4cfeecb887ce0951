"""Whether a JSON document has the form that its schema asks for, and what is wrong.

Nearly every document is right, which ``jsonschema_rs`` says quickly. ``jsonschema``
says of the others why, and is loaded for them. A number is finite: JSON has no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import jsonschema_rs

if TYPE_CHECKING:
    import jsonschema


@dataclass(frozen=True)
class Form:
    """What a JSON Schema, draft 2020-12, asks of documents.

    >>> form = Form({"required": ["mesh"]})
    >>> [error.message for error in form.errors({"mesh": 1})]
    []
    >>> [error.message for error in form.errors({})]
    ["'mesh' is a required property"]
    """

    schema: dict[str, Any]

    def errors(self, document: Any) -> Iterator[jsonschema.ValidationError]:
        """Yield what is wrong with a document, in no order.

        Raises:
            RecursionError: for too many nested brackets.
        """
        if not self._is_right(document):
            from jsonschema import Draft202012Validator, validators

            finite = Draft202012Validator.TYPE_CHECKER.redefine("number", _is_finite)
            strict = validators.extend(Draft202012Validator, type_checker=finite)
            yield from strict(self.schema).iter_errors(document)

    def _is_right(self, document: Any) -> bool:
        """Whether it is quickly seen that nothing is wrong."""
        try:
            return self._quick.is_valid(document)
        except (ValueError, OverflowError, RecursionError):  # what it does not take
            return False

    @cached_property
    def _quick(self) -> jsonschema_rs.Draft202012Validator:
        return jsonschema_rs.Draft202012Validator(self.schema)


def _is_finite(_: object, value: object) -> bool:
    """Whether a value is a number of JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -inf < value < inf
