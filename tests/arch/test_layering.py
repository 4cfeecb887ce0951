"""Who may know whom: compiler nobody, passes and runtime compiler, the facade all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.arch.conftest import Tree

# What files below a folder may import of this project, themselves included.
MAY_IMPORT = {
    "compiler": ("partita.compiler",),
    "passes": ("partita.compiler", "partita.passes"),
    "runtime": ("partita.compiler", "partita.runtime"),
}


def imports_of_partita(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each import, lazy and type-only ones too."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module="partita", names=names):
                found = [f"partita.{alias.name}" for alias in names]
            case ast.ImportFrom(module=str(module)):
                found = [module]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                found = [module]
            case _:
                continue
        for module in found:
            if module.partition(".")[0] == "partita":
                yield node.lineno, module


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_imports_only_what_it_may_know(tree: Tree, folder: str) -> None:
    allowed = MAY_IMPORT[folder]
    wrong = [
        f"{source}:{line} imports {module}"
        for source in tree.sources(folder)
        for line, module in imports_of_partita(source.parsed())
        if not any(is_within(module, package) for package in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("statement", "module"),
    [
        ("import partita", "partita"),
        ("import partita.passes.base as base", "partita.passes.base"),
        ("from partita import passes", "partita.passes"),
        ("from partita.passes import base", "partita.passes"),
        ("def f():\n    from partita.passes.base import Pass", "partita.passes.base"),
        ("importlib.import_module('partita.passes')", "partita.passes"),
    ],
)
def test_every_form_of_import_is_seen(statement: str, module: str) -> None:
    assert [m for _, m in imports_of_partita(ast.parse(statement))] == [module]
