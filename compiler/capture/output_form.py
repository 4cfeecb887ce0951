"""The structure of what a model returns: names for its tensors, and the way back.

A dataclass that torch does not know is opened as if it were a dict of what it has.
Other objects that torch cannot look into (a key-value cache) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

from torch import Tensor

from partita.compiler.capture.inputs import Constant
from partita.compiler.capture.leaf_paths import Path, leaf_paths
from partita.compiler.capture.torch_private import pytree
from partita.compiler.errors import CaptureFailed


def name_outputs(outputs: Any) -> dict[str, Tensor]:
    """Return the tensors among a model's outputs by their paths, the loss included.

    Raises:
        CaptureFailed: naming two whose paths read alike.
    """
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    named: dict[str, Tensor] = {}
    for path, tensor in _tensors(outputs, (), ()):
        name = ".".join(path)
        if name in named:
            raise CaptureFailed(
                f"two of the model's outputs are named {name!r}, by keys such as 1 and "
                "'1', or 'a.b' and 'b' in 'a'; give one another key"
            )
        named[name] = tensor
    return named


def _tensors(
    tree: Any, before: Path, within: tuple[int, ...]
) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors of a tree that hangs ``before`` and ``within`` others."""
    for path, leaf in leaf_paths(tree):
        if isinstance(leaf, Tensor):
            yield (*before, *path), leaf
        for name, part in _opened(leaf, within).items():
            yield from _tensors(part, (*before, *path, name), (*within, id(leaf)))


def _opened(leaf: Any, within: tuple[int, ...]) -> dict[str, Any]:
    """Return what a dataclass has; nothing of what cannot be made anew from that."""
    is_plain = is_dataclass(leaf) and type(leaf).__new__ is object.__new__
    if not is_plain or id(leaf) in within:
        return {}
    names = (field.name for field in fields(cast(Any, leaf)))
    held = {name: getattr(leaf, name) for name in names if hasattr(leaf, name)}
    return held | getattr(leaf, "__dict__", {})


class OutputForm:
    """The structure of what a model returns, learned while it is traced.

    A model that returns its loss alone names it ``output``, programs ``loss``. Numbers
    and text come back as they were traced, objects as ``None``. ``has_own_backward``
    says whether the loss is differentiated by code of the model's, ``returned`` names
    the tensors that a ``ScoredModel`` returns beside the loss.
    """

    def __init__(self) -> None:
        self.has_own_backward = False
        self.returned: tuple[str, ...] = ()
        self._tree = _Tree((), pytree.tree_structure(()))

    def learn(self, returned: Any) -> None:
        """Take the structure of ``returned``."""
        names = {id(tensor): name for name, tensor in name_outputs(returned).items()}
        self._tree = _read(returned, names, ())

    def restore(self, outputs: Mapping[str, Tensor]) -> Any:
        """Return a program's outputs as the model returns them."""
        return self._tree.made({"output": outputs.get("loss"), **outputs})


@dataclass(frozen=True)
class _Named:
    """A tensor."""

    name: str


@dataclass(frozen=True)
class _Fields:
    """A dataclass."""

    kind: type[Any]
    parts: Mapping[str, _Tree]

    def made(self, found: Mapping[str, Tensor | None]) -> Any:
        """Return one, with ``found`` as its tensors, as it was behind its init."""
        made = object.__new__(self.kind)
        for name, part in self.parts.items():
            object.__setattr__(made, name, part.made(found))  # it may be frozen
        return made


@dataclass(frozen=True)
class _Tree:
    """A pytree and what its leaves are."""

    leaves: tuple[_Named | _Fields | Constant, ...]
    spec: pytree.TreeSpec

    def made(self, found: Mapping[str, Tensor | None]) -> Any:
        """Return one, with ``found`` as its tensors."""
        leaves = [_filled(leaf, found) for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


def _filled(leaf: _Named | _Fields | Constant, found: Mapping[str, Any]) -> Any:
    match leaf:
        case _Named(name):
            return found.get(name)
        case _Fields():
            return leaf.made(found)
        case _:
            return leaf


def _read(tree: Any, names: Mapping[int, str], within: tuple[int, ...]) -> _Tree:
    leaves, spec = pytree.tree_flatten(tree)
    return _Tree(tuple(_read_leaf(leaf, names, within) for leaf in leaves), spec)


def _read_leaf(
    leaf: Any, names: Mapping[int, str], within: tuple[int, ...]
) -> _Named | _Fields | Constant:
    if id(leaf) in names:
        return _Named(names[id(leaf)])
    if parts := _opened(leaf, within):
        further = (*within, id(leaf))
        own = {name: _read(part, names, further) for name, part in parts.items()}
        return _Fields(type(leaf), own)
    return leaf if isinstance(leaf, Constant) else None
