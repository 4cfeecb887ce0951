"""The leaves of what a model is called with, or returns, and the names that lead there.

A type that its library registered with torch may have no names for what it holds: it
has its keys' then, if it is a mapping, and else numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any

from partita.compiler.capture.torch_private import pytree

Path = tuple[str, ...]
"""The names that lead to a leaf, none to a tree that is one itself."""


def leaf_paths(tree: Any) -> list[tuple[Path, Any]]:
    """Return the leaves of a pytree, in its order, each with the names on the way."""
    try:
        paths, _ = pytree.tree_flatten_with_path(tree)
    except ValueError:  # a type without names
        return list(_by_levels(tree, ()))
    return [(tuple(map(_text, path)), leaf) for path, leaf in paths]


def _by_levels(tree: Any, before: Path) -> Iterator[tuple[Path, Any]]:
    def is_below(node: Any) -> bool:
        return node is not tree

    children, spec = pytree.tree_flatten(tree, is_leaf=is_below)
    if spec.is_leaf():
        yield before, tree
        return
    try:
        paths, _ = pytree.tree_flatten_with_path(tree, is_leaf=is_below)
    except ValueError:
        names = _names(tree, children)
    else:
        names = [_text(entry) for (entry,), _ in paths]
    for name, child in zip(names, children, strict=True):
        yield from _by_levels(child, (*before, name))


def _names(tree: Any, children: Sequence[Any]) -> Sequence[str]:
    held = dict[Any, Any](tree) if isinstance(tree, Mapping) else {}
    if len(held) == len(children) and all(map(is_, held.values(), children)):
        return [str(key) for key in held]
    return [str(number) for number in range(len(children))]


def _text(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
