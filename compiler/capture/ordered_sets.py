"""Sets that a model makes while it is called are gone through in the order of making.

Python goes through a set of strings in an order that is another one in every process.
A model that does something for each kind of its layers (``for kind in set(kinds)``)
would be another program in every rank, by the order of its calls, and in none the one
that a plan was made for.

Not here: sets that are written out (``{kind for kind in kinds}``), and those made by
modules that no part of the model is from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch


class _Sets(type):
    """Of a class that all sets are of, for who asks in its place for ``set``."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, set)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, set)


class OrderedSet(set[Any], metaclass=_Sets):
    """A set that is gone through in the order in which its elements were put in.

    >>> list(OrderedSet("hello") | OrderedSet("world"))
    ['h', 'e', 'l', 'o', 'w', 'r', 'd']
    """

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        """Put elements in."""
        super().__init__()
        self._order: dict[Any, None] = {}  # of all that ever were in it
        self.update(elements)

    def __iter__(self) -> Iterator[Any]:
        """Go through the elements."""
        for element in super().__iter__():  # some may have come in past ``add``
            self._order.setdefault(element)
        return iter([element for element in self._order if element in self])

    def add(self, element: Any) -> None:
        """Put one in."""
        self._order[element] = None
        super().add(element)

    def update(self, *others: Iterable[Any]) -> None:
        """Put all of some in."""
        for element in chain(*others):
            self.add(element)

    def pop(self) -> Any:
        """Take the first out."""
        for element in self:
            self.remove(element)
            return element
        raise KeyError("pop from an empty set")

    def __ior__(self, other: Any) -> Any:
        """Put all of another set in."""
        if isinstance(other, set | frozenset):
            self.update(other)
            return self
        return NotImplemented


def _in_order(name: str) -> Callable[..., Any]:
    """Return the method of sets that makes one of several, in their order."""
    method: Callable[..., Any] = getattr(set, name)

    def make(own: OrderedSet, *others: Iterable[Any]) -> Any:
        others = tuple(o if isinstance(o, set | frozenset) else [*o] for o in others)
        found = method(own, *others)
        if found is NotImplemented:
            return found
        return OrderedSet(
            element for element in chain(own, *others) if element in found
        )

    return make


_MAKING = ("or", "and", "sub", "xor")
_NAMED = ("union", "intersection", "difference", "symmetric_difference", "copy")
for _name in (*(f"__{name}__" for name in _MAKING), *_NAMED):
    setattr(OrderedSet, _name, _in_order(_name))


@contextmanager
def ordered_sets(model: torch.nn.Module) -> Generator[None]:
    """Within it ``set`` makes such sets, in modules that parts of a model are from."""
    with ExitStack() as stack:
        for module in _modules(model):
            if not hasattr(module, set.__name__):
                stack.enter_context(
                    patch.object(module, set.__name__, OrderedSet, create=True)
                )
        yield


def _modules(model: torch.nn.Module) -> list[ModuleType]:
    """Return the modules of Python that classes of a model are from.

    Those of torch and of Python itself are left as they are.
    """
    kinds = dict.fromkeys(kind for m in model.modules() for kind in type(m).__mro__)
    names = dict.fromkeys(kind.__module__ for kind in kinds)
    others = {torch.__name__, *sys.stdlib_module_names}
    own = [name for name in names if name.partition(".")[0] not in others]
    return [sys.modules[name] for name in own if name in sys.modules]
