"""The public function and its command: files, refusals, names that are only text."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import partita as pt
from partita.cli.main import main
from partita.compiler.plan.document import ModelId
from partita.compiler.plan.plan import Plan
from partita.plots.plot import Plot

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
HOSTILE = "$\\frac{$</text><script>alert(1)</script>"


@pytest.mark.parametrize("suffix", STARTS)
def test_files_are_of_their_kind_and_the_same_each_time(
    plan: Plan, tmp_path: Path, suffix: str
) -> None:
    once, again = (tmp_path / f"{name}.{suffix}" for name in ("once", "again"))
    for path in (once, again):
        assert pt.plot(plan, "timeline", path).axes
    assert once.read_bytes().startswith(STARTS[suffix])
    assert once.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("what", Plot)
def test_names_stay_text(plan: Plan, tmp_path: Path, what: str) -> None:
    hostile = replace(plan, model=ModelId(HOSTILE, "1"))
    figure = pt.plot(hostile, what, tmp_path / "plot.svg")
    assert figure.get_suptitle().startswith(HOSTILE)
    svg = ElementTree.parse(tmp_path / "plot.svg")
    assert not [e for e in svg.iter() if e.tag.endswith("script")]


def test_the_command_saves_what_it_is_asked_for(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, drawn = tmp_path / "plan.json", tmp_path / "plot.svg"
    plan.save(saved)
    words = ["--what", "scaling", "--along", "tp", "--sizes", "2,4", "-o", str(drawn)]
    assert main(["plot", str(saved), *words]) == 0
    assert capsys.readouterr().err == f"saved {drawn}\n"
    assert 'id="communication tp"' in drawn.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--what pie -o a.png", "'pie' is no plot; want one of memory, timeline, scal"),
        ("--what memory -o a.gif", "a.gif: want a file that ends in .png, .svg, .pdf"),
        ("--what memory -o no/a.png", "no/a.png: cannot be written: No such file"),
        ("--what memory --along tp -o a.png", "--along is of --what scaling alone"),
        ("--what scaling --sizes 8,x -o a.png", "--sizes 8,x: want whole numbers"),
        ("--what scaling --sizes 0 -o a.png", "size 0 along batch: want a positive"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    plan.save("plan.json")
    assert main(["plot", "plan.json", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"partita: {said}")
    assert error.count("\n") == 1


def test_without_matplotlib_it_says_what_to_install(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(pt.PartitaError, match=r"want: pip install matplotlib$"):
        pt.plot(plan, "memory")


def test_matplotlib_is_imported_only_when_something_is_drawn() -> None:
    code = "import partita, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
