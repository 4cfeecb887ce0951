import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.documented import (
    ROOT,
    assert_prints,
    expected_output,
    run_script,
)

FOLDER = ROOT / "examples"
MAX_LINES = 100

NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
ON_RANKS = ("demo", "transformers_model")


def docstring_of(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring is not None
    return docstring


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ON_RANKS])
def test_example_prints_what_it_promises(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = FOLDER / f"{name}.py"
    run_script(path)
    printed = capfd.readouterr()

    assert printed.err == ""
    assert_prints(expected_output(docstring_of(path)), printed.out)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("name", NAMES)
def test_example_runs_by_its_command(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.py"
    ran = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert_prints(expected_output(docstring_of(path)), ran.stdout)


def test_examples_are_short_and_say_how_to_run_them() -> None:
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) < MAX_LINES, path
        command = docstring_of(path).splitlines()[2]
        assert command in (f"$ .venv/bin/python examples/{path.name}", "$ make demo")


def test_text_is_plain_and_as_its_note_says() -> None:
    text = (FOLDER / "data" / "alice.txt").read_bytes()

    assert text.isascii()
    assert f"{len(text):,} bytes" in (FOLDER / "data" / "README.md").read_text("utf-8")
