"""Frozen dataclasses that are made quickly are as others are."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from partita.compiler.frozen import quickly_made


@dataclass(frozen=True, slots=True)
class Plain:
    """As ``dataclass`` makes it."""

    first: int
    second: list[int] = field(default_factory=list[int])
    third: str = "three"
    fourth: int = field(default=4, kw_only=True)


@quickly_made
@dataclass(frozen=True, slots=True)
class Quick:
    """The same."""

    first: int
    second: list[int] = field(default_factory=list[int])
    third: str = "three"
    fourth: int = field(default=4, kw_only=True)


def test_objects_are_made_and_compared_as_without_it() -> None:
    one = Quick(1, third="3", fourth=2)
    assert type(one) is Quick
    assert str(one) == str(Plain(1, third="3", fourth=2)).replace("Plain", "Quick")
    assert one == Quick(1, [], "3", fourth=2) != Quick(1)
    assert Quick(1).second is not Quick(1).second
    assert inspect.signature(Quick) == inspect.signature(Plain)
    assert hash(replace(one, second=())) == hash((1, (), "3", 2))
    for copied in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), replace(one)):
        assert copied == one
        assert type(copied) is Quick


def test_they_are_frozen() -> None:
    one = Quick(1)
    with pytest.raises(FrozenInstanceError, match="first"):
        one.first = 2  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(FrozenInstanceError, match="third"):
        del one.third  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        object.__setattr__(one, "fifth", 5)
    assert one == Quick(1)


@pytest.mark.parametrize("given", [(), (1, [], "3", 4)])
def test_what_is_missing_or_too_much_is_named(given: tuple[object, ...]) -> None:
    with pytest.raises(TypeError) as quick:
        Quick(*given)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError) as plain:
        Plain(*given)  # pyright: ignore[reportArgumentType]
    assert str(quick.value) == str(plain.value).replace("Plain", "Quick")


def test_a_class_that_does_more_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        size: int

        def __post_init__(self) -> None:
            assert self.size > 0

    @dataclass(frozen=True, slots=True)
    class Counted:
        size: int = field(init=False)

    for refused in (Checked, Counted):
        with pytest.raises(TypeError, match=f"{refused.__name__} does more"):
            quickly_made(refused)
