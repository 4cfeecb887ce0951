"""The wheel holds the package whole, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.arch.conftest import Tree

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--wheel-dir", str(folder), str(tree.root)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("partita-*.whl")
    return path


def files_that_ship(root: Path) -> dict[str, Path]:
    """Map each file's name in the wheel to where it stands in the checkout."""
    facade = root / "src" / "partita"
    parts = [path.name for path in facade.iterdir() if path.is_symlink()]
    folders = {"partita": facade} | {f"partita/{part}": root / part for part in parts}
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for name, folder in folders.items()
        for path in folder.rglob("*")  # does not follow links
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_holds_every_file_once(tree: Tree, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if ".dist-info/" not in n]
    assert sorted(names) == sorted(files_that_ship(tree.root))


def test_wheel_carries_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        command = "partita = partita.cli.main:main"
        assert command in archive.read(files["entry_points.txt"]).decode()
        assert "licenses/LICENSE" in files


def test_unpacked_wheel_imports_without_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import partita.compiler, partita.passes, partita.runtime; "
    code += "print(partita.compiler.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "partita/compiler/__init__.py")
