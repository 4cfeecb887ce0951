"""The source tree, as the tests of its rules see it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: where it stands below the root, and its text."""

    path: Path
    text: str

    def __str__(self) -> str:
        return self.path.as_posix()

    def parsed(self) -> ast.Module:
        """Return its syntax."""
        return ast.parse(self.text)

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())


@dataclass(frozen=True, slots=True)
class Tree:
    """The checkout: its root, and its Python files by folder."""

    root: Path

    def sources(self, *folders: str) -> Iterator[Source]:
        """Yield every file below these folders; rglob follows no links."""
        for folder in folders:
            for path in sorted((self.root / folder).rglob("*.py")):
                text = path.read_text(encoding="utf-8")
                yield Source(path.relative_to(self.root), text)

    def code(self) -> Iterator[Source]:
        """Yield every file that ships: the three parts and the facade."""
        return self.sources("compiler", "passes", "runtime", "src/partita")


@pytest.fixture(scope="session")
def tree() -> Tree:
    root = Path(__file__).resolve().parents[2]
    assert (root / "pyproject.toml").is_file()
    return Tree(root)
