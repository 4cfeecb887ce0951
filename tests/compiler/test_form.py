"""Documents and the form that a schema asks of them."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from partita.compiler.form import Form

SIZES = Form({"type": "object", "additionalProperties": {"type": "integer"}})


@pytest.mark.parametrize("right", [{}, {"dp": 2, "tp": 4}, {"dp": 2**70}])
def test_of_a_right_document_nothing_is_wrong(right: dict[str, Any]) -> None:
    assert list(SIZES.errors(right)) == []


def test_all_that_is_wrong_is_told_and_where() -> None:
    wrong = {"dp": "2", "tp": 4, "pp": None}
    assert {*(error.json_path for error in SIZES.errors(wrong))} == {"$.dp", "$.pp"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_is_finite(value: float) -> None:
    form = Form({"additionalProperties": {"type": "number"}})
    assert [error.validator for error in form.errors({"s": value})] == ["type"]


def test_what_the_quick_one_does_not_take_is_looked_at_all_the_same() -> None:
    assert [error.validator for error in SIZES.errors({"dp": object()})] == ["type"]


_RIGHT = """
import sys
from partita.compiler.form import Form
assert not list(Form({"type": "object"}).errors({}))
print("jsonschema" in sys.modules)
"""


def test_a_right_document_loads_no_more() -> None:
    run = [sys.executable, "-c", _RIGHT]
    shown = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert shown == "False\n"
