import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.documented import ROOT, assert_prints, expected_output

FOLDER = ROOT / "examples"
MAX_LINES = 100

MARKS = {
    "demo": (pytest.mark.dist, pytest.mark.slow),
    "transformers_model": (pytest.mark.dist, pytest.mark.slow),
}
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, ()))
    for path in sorted(FOLDER.glob("*.py"))
]


def docstring_of(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring is not None
    return docstring


@pytest.mark.parametrize("path", EXAMPLES)
def test_example_prints_what_it_promises(path: Path, tmp_path: Path) -> None:
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
