"""One import name over three top-level folders: the links, the packages, the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.arch.conftest import Tree

PARTS = ("compiler", "passes", "runtime")  # a fourth: one link, pyproject.toml, here

# Imports every module of the package, then prints what came in under a bare name.
IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import partita

def fail(name):
    raise

for module in pkgutil.walk_packages(partita.__path__, "partita.", onerror=fail):
    importlib.import_module(module.name)
for name in sorted(sys.modules):
    if name.partition(".")[0] in ("compiler", "passes", "runtime"):
        print(name)
"""


@pytest.mark.parametrize("part", PARTS)
def test_link_is_relative_and_right(tree: Tree, part: str) -> None:
    link = tree.root / "src" / "partita" / part
    assert link.is_symlink(), f"ln -sfn ../../{part} src/partita/{part}"
    assert os.readlink(link) == f"../../{part}"
    assert link.resolve() == tree.root / part


def test_facade_holds_no_other_links(tree: Tree) -> None:
    facade = tree.root / "src" / "partita"
    links = {path.name for path in facade.rglob("*") if path.is_symlink()}
    assert links == set(PARTS)


def test_root_is_not_a_package(tree: Tree) -> None:
    assert not (tree.root / "__init__.py").exists()


def test_every_code_folder_is_a_package(tree: Tree) -> None:
    folders = {source.path.parent for source in tree.code()}
    bare = [str(f) for f in folders if not (tree.root / f / "__init__.py").exists()]
    assert sorted(bare) == []


def test_package_is_typed(tree: Tree) -> None:
    assert (tree.root / "src" / "partita" / "py.typed").is_file()


def test_importing_everything_makes_no_second_copy(tree: Tree) -> None:
    # In its own process: pytest has modules of its own called tests.compiler and so on,
    # and starts in the root, where a bare import would succeed.
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING],
        cwd=tree.root,
        env={**os.environ, "PYTHONPATH": str(tree.root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_wheel_maps_every_part(tree: Tree) -> None:
    pyproject = tomllib.loads((tree.root / "pyproject.toml").read_text())
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["only-include"] == ["src/partita", *PARTS]
    assert wheel["exclude"] == [f"/src/partita/{part}" for part in PARTS]
    mapped = {part: f"partita/{part}" for part in PARTS}
    assert wheel["sources"] == {"src/partita": "partita", **mapped}


def test_type_check_covers_every_part(tree: Tree) -> None:
    # pyright follows a link only to a folder that it was told of.
    pyproject = tomllib.loads((tree.root / "pyproject.toml").read_text())
    include = pyproject["tool"]["pyright"]["include"]
    assert {"src", *(f"src/partita/{part}" for part in PARTS)} <= set(include)
