"""What users hand over raises a PartitaError; our own bugs never do."""

from __future__ import annotations

import inspect

import pytest

from partita.compiler import errors
from partita.compiler.errors import InvariantViolation, PartitaError

CHILDREN = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, PartitaError) and found is not PartitaError
]


@pytest.mark.parametrize("error", CHILDREN)
def test_users_errors_are_value_errors(error: type[PartitaError]) -> None:
    assert issubclass(error, ValueError)
    assert inspect.getdoc(error)


def test_every_kind_is_here() -> None:
    assert len(CHILDREN) == 10


def test_own_bugs_are_no_user_errors() -> None:
    assert not issubclass(InvariantViolation, PartitaError)
    assert issubclass(InvariantViolation, AssertionError)
