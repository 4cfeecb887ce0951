"""What a model keeps in plain attributes: a call's changes are taken back.

A trace may call a model more than once, and is to leave it as it was. A model whose
next call would go by what the last one left there (a count of its calls, the state of a
recurrence, a flag that its first call sets) computes something else each time, which a
program, being the same in every step, would not: ``as_left`` has it captured again, to
compare.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.compiler.capture.torch_private import pytree
from partita.compiler.errors import CaptureFailed

_PLAIN = bool, int, float, str, type(None)
_DICTS = dict, OrderedDict
_TABLES = "_parameters", "_buffers", "_modules"
"""What a trace itself changes in modules: tensors are others there, never more."""

LEFT = "attribute left by the call: "
"""What a tensor that a call leaves is named by among outputs, where it is shown."""

_GONE = object()
"""The value of an attribute that is not there any more."""


@dataclass(frozen=True)
class Change:
    """An attribute of a module that a call changed, and what the call left there."""

    module: torch.nn.Module
    name: str
    value: Any

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that were left there, as a trace has them."""
        return [x for x in pytree.tree_leaves(self.value) if isinstance(x, Tensor)]

    def make(self) -> None:
        """Change the attribute so; tensors are others of their types, which are zero.

        Those of a trace have no values, and mean nothing behind it.
        """
        if self.value is _GONE:
            delattr(self.module, self.name)
        else:
            _set(self.module, self.name, pytree.tree_map(_without_trace, self.value))


def _without_trace(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.zeros((), dtype=leaf.dtype).expand(leaf.shape)


Changes = tuple[Change, ...]


@dataclass
class Left:
    """What the last call left in the attributes of a model's modules.

    It is no tuple, which an export would take back itself.
    """

    changes: Changes = ()


@dataclass(frozen=True)
class PlainTensor:
    """A tensor of a model that is neither parameter nor buffer, as it was found."""

    name: str
    tensor: Tensor
    version: int


def plain_tensors(model: torch.nn.Module) -> list[PlainTensor]:
    """Return the tensors that a model has in attributes, in lists and the like."""
    return [
        PlainTensor(f"{path}.{name}".lstrip("."), leaf, leaf._version)
        for path, part in model.named_modules()
        for name, value in _own_of(part).items()
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, Tensor) and not leaf.is_inference()
    ]


def check_unwritten(model: torch.nn.Module, found: list[PlainTensor]) -> None:
    """Check that nothing was written to tensors of a model since they were found.

    Raises:
        CaptureFailed: naming one.
    """
    for plain in found:
        if plain.tensor._version != plain.version:
            raise CaptureFailed(
                f"cannot capture {type(model).__name__}: a call writes to the tensor "
                f"{plain.name!r}, which is neither parameter nor buffer, so that no "
                "step of a program would; keep it in a buffer (register_buffer)"
            )


class Attributes:
    """What the modules of a model keep in attributes, hooks among it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._before = [
            (part, _copied(_own_of(part)), [dict(vars(part)[name]) for name in _TABLES])
            for part in model.modules()
        ]

    def take_back(self) -> Changes:
        """Take back what was changed since; return what it was."""
        return tuple(
            change
            for module, attributes, tables in self._before
            for changes in (_taken_back(module, attributes), _taken_out(module, tables))
            for change in changes
        )


def _taken_back(
    module: torch.nn.Module, attributes: dict[str, Any]
) -> Generator[Change]:
    now = _own_of(module)
    for name in sorted(now.keys() - attributes.keys()):
        yield Change(module, name, now[name])
        delattr(module, name)
    for name, value in attributes.items():
        found = now.get(name, _GONE)
        if _is_one(found, value):
            continue
        if not _is_alike(found, value):
            yield Change(module, name, _copied(found))
        _set(module, name, value)


def _taken_out(
    module: torch.nn.Module, tables: list[dict[str, Any]]
) -> Generator[Change]:
    """Take back what was registered since, or set where there was none."""
    for kind, before in zip(_TABLES, tables, strict=True):
        now = vars(module)[kind]
        for name in [x for x in now if now[x] is not None and before.get(x) is None]:
            yield Change(module, name, now[name])
            if name in before:
                now[name] = None
            else:
                delattr(module, name)


def _set(module: torch.nn.Module, name: str, value: Any) -> None:
    """Set an attribute; a dict stays the one that it was: who hooked in knows it."""
    found = vars(module).get(name)
    if isinstance(found, dict) and isinstance(value, dict):
        found.clear()
        found.update(value)
    else:
        setattr(module, name, value)


@contextmanager
def as_left(model: torch.nn.Module, changes: Changes) -> Generator[None]:
    """Within it the attributes of a model are what a call left there."""
    before = Attributes(model)
    for change in changes:
        change.make()
    try:
        yield
    finally:
        before.take_back()


def _own_of(module: torch.nn.Module) -> dict[str, Any]:
    return {k: value for k, value in vars(module).items() if k not in _TABLES}


def _copied(tree: Any) -> Any:
    leaves, form = pytree.tree_flatten(tree)
    return pytree.tree_unflatten(leaves, form)


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two values are plain and equal."""
    return isinstance(one, _PLAIN) and type(one) is type(other) and one == other


def _is_one(one: Any, other: Any) -> bool:
    """Whether two values are one, or containers alike of the same values."""
    if isinstance(one, _PLAIN):
        return one is other
    if type(one) in _DICTS and not one:  # most are, of a module's
        return type(other) is type(one) and not other
    (ones, form), (others, like) = map(pytree.tree_flatten, (one, other))
    return form == like and all(a is b for a, b in zip(ones, others, strict=True))
