"""Who may know whom: compiler nobody, passes and runtime compiler, the facade all.

In the facade imports go one way too, from room to room.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.arch.conftest import Source, Tree

# What files below a folder may import of this project, themselves included.
MAY_IMPORT = {
    "compiler": ("partita.compiler",),
    "passes": ("partita.compiler", "partita.passes"),
    "runtime": ("partita.compiler", "partita.runtime"),
}

# The rooms of the facade, and the modules beside them: each may import those before it.
ROOMS = (
    "version",
    "options",
    "microbatched",
    "lowering",
    "testing",
    "one_mesh",
    "pipelines",
    "whole_plans",
    "planning",
    "carried",
    "verifying",
    "api",
    "export",
    "exporters",
    "page",
    "plots",
    "__init__",
    "cli",
    "__main__",
)


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


def room_of(source: Source) -> str:
    """Return the room of the facade that a file stands in, or its own name."""
    return source.path.relative_to("src/partita").parts[0].removesuffix(".py")


def room_asked_of(module: str) -> str:
    """Return the room or part of an imported module; public names are __init__'s."""
    name = f"{module}.".split(".")[1]
    return name if name in {*MAY_IMPORT, *ROOMS} else "__init__"


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


def test_every_room_of_the_facade_has_its_place(tree: Tree) -> None:
    assert {room_of(source) for source in tree.sources("src/partita")} == set(ROOMS)


def test_rooms_of_the_facade_import_one_way(tree: Tree) -> None:
    wrong: list[str] = []
    for source in tree.sources("src/partita"):
        allowed = {*MAY_IMPORT, *ROOMS[: ROOMS.index(room_of(source)) + 1]}
        wrong += [
            f"{source}:{line} imports {module}"
            for line, module in imports_of_partita(source.parsed())
            if room_asked_of(module) not in allowed
        ]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("partita", "__init__"),
        ("partita.plan", "__init__"),
        ("partita.planning", "planning"),
        ("partita.one_mesh.planner", "one_mesh"),
        ("partita.compiler.ir.mesh", "compiler"),
    ],
)
def test_room_of_an_import_is_known(module: str, room: str) -> None:
    assert room_asked_of(module) == room


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
