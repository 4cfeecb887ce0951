"""Leaves have names, also in what a library registered with torch without any."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.capture.leaf_paths import leaf_paths
from partita.compiler.capture.torch_private import pytree


class Pair(NamedTuple):
    """What has names of its own."""

    one: Any
    other: Any


class Held(OrderedDict[str, Any]):
    """A mapping registered without names, as libraries do."""


@dataclass
class Both:
    """Registered so, too, and no mapping."""

    left: Any
    right: Any


def _of_held(held: Held) -> tuple[list[Any], list[str]]:
    return [*held.values()], [*held]


def _held(values: Iterable[Any], keys: list[str]) -> Held:
    return Held(zip(keys, values, strict=True))


def _of_both(both: Both) -> tuple[list[Any], None]:
    return [both.left, both.right], None


def _both(values: Iterable[Any], _: None) -> Both:
    return Both(*values)


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    pytree.register_pytree_node(Held, _of_held, _held)
    pytree.register_pytree_node(Both, _of_both, _both)


def paths_of(tree: Any) -> list[str]:
    return [".".join(path) for path, _ in leaf_paths(tree)]


def test_types_with_names_have_theirs() -> None:
    tree = {"a": [1, Pair(2, 3)], "b": None}
    assert leaf_paths(tree) == [
        (("a", "0"), 1),
        (("a", "1", "one"), 2),
        (("a", "1", "other"), 3),
        (("b",), None),
    ]
    assert leaf_paths(7) == [((), 7)]


def test_a_mapping_without_names_has_its_keys() -> None:
    tree = (Held(x=1, y=[2, Held(z=3)]), Pair(4, {"k": 5}))
    assert paths_of(tree) == ["0.x", "0.y.0", "0.y.1.z", "1.one", "1.other.k"]
    assert [leaf for _, leaf in leaf_paths(tree)] == pytree.tree_leaves(tree)


def test_what_is_no_mapping_has_numbers() -> None:
    assert paths_of([Both(1, {"k": Both(2, 3)})]) == ["0.0", "0.1.k.0", "0.1.k.1"]


class Noted(nn.Module):
    """Returns what was registered without names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Held:
        """Return what a layer makes, and twice that."""
        made = self.layer(x)
        return Held(loss=made.square().mean(), pair=Both(made, 2 * made))


def test_models_return_them() -> None:
    model, x = Noted(), torch.randn(4, 4)
    plan = pt.plan(model, x, mesh=pt.Mesh(dp=2))
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report
    assert {"output:pair.0", "output:pair.1"} <= report.errors.keys()
