"""Conventions of CONTRIBUTING.md that a machine can check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.arch.conftest import Tree

MAX_SOURCE_LINES = 400
MAX_TEST_LINES = 500
# Files that are one long table may be longer.
TABLES = frozenset({"compiler/rules/table.py"})

EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

# torch moves its private modules between releases; one file keeps up with them.
HOLDS_PRIVATE_TORCH = "compiler/capture/torch_private.py"


def private_torch_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each private torch name imported or reached."""
    names = dict(torch_aliases(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                found = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                found = [f"{module}.{alias.name}" for alias in aliases]
            case ast.Attribute():
                found = [dotted(node, names)]
            case _:
                continue
        for name in found:
            if is_private_torch(name):
                yield node.lineno, name


def torch_aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (name in this file, dotted torch name) of each import of torch."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    if alias.asname:
                        yield alias.asname, alias.name
                    else:
                        root = alias.name.partition(".")[0]
                        yield root, root
            case ast.ImportFrom(module=str(module), names=aliases):
                for alias in aliases:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"
            case _:
                pass


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return a.b.c as text with its imported root in full, or '' when it has none."""
    match node:
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(value=value, attr=attribute):
            base = dotted(value, names)
            return f"{base}.{attribute}" if base else ""
        case _:
            return ""


def is_private_torch(name: str) -> bool:
    """Tell whether a component is private; op names under torch.ops are public."""
    root, *rest = name.split(".")
    if root != "torch" or rest[:1] == ["ops"]:
        return False
    return any(part.startswith("_") and not part.endswith("__") for part in rest)


def undocumented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each public function and class without a docstring."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_") and not ast.get_docstring(node):
                yield node.lineno, node.name


def test_source_files_are_short(tree: Tree) -> None:
    long = {str(s): s.num_lines for s in tree.code() if s.num_lines > MAX_SOURCE_LINES}
    assert set(long) == TABLES, f"over {MAX_SOURCE_LINES} lines: {long}"


def test_test_files_are_short(tree: Tree) -> None:
    tests = tree.sources("tests")
    long = {str(s): s.num_lines for s in tests if s.num_lines > MAX_TEST_LINES}
    assert long == {}, f"over {MAX_TEST_LINES} lines"


def test_module_names_say_what_is_inside(tree: Tree) -> None:
    sources = [*tree.code(), *tree.sources("tests", "examples", "benchmarks", "tools")]
    empty = [str(s) for s in sources if EMPTY_NAMES & {*s.path.parts, s.path.stem}]
    assert empty == []


def test_private_torch_names_stay_in_one_file(tree: Tree) -> None:
    private = [
        f"{source}:{line} {name}"
        for source in [*tree.code(), *tree.sources("examples")]
        if str(source) != HOLDS_PRIVATE_TORCH
        for line, name in private_torch_names(source.parsed())
    ]
    assert private == [], f"these belong into {HOLDS_PRIVATE_TORCH}"


def test_everything_public_has_a_docstring(tree: Tree) -> None:
    bare = [
        f"{source}:{line} {name}"
        for source in tree.code()
        for line, name in undocumented(source.parsed())
    ]
    assert bare == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo",
        "import torch.distributed._tensor as dt",
        "from torch import _dynamo",
        "from torch._ops import OpOverload",
        "from torch.distributed import _functional_collectives as funcol",
        "import torch; torch._dynamo.reset()",
        "import torch.distributed as dist; dist._coalescing_manager()",
        "from torch import fx; fx._pytree.tree_map",
    ],
)
def test_private_torch_name_is_seen(code: str) -> None:
    assert list(private_torch_names(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import torch; torch.__version__",
        "import torch; torch.ops._c10d_functional.wait_tensor",
        "import torch; torch.ops.aten._softmax.default",
        "from torch import fx; fx.Node",
        "self._dynamo; other._private",
    ],
)
def test_public_name_is_no_private_torch_name(code: str) -> None:
    assert list(private_torch_names(ast.parse(code))) == []
