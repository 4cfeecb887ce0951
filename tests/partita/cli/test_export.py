"""``partita export``: every format by its name, files, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.partita.conftest import MODEL

from partita.cli.main import main
from partita.compiler.export.exporter import Exporter
from partita.exporters import EXPORTERS

Captured = pytest.CaptureFixture[str]

OF_PLANS = [e for e in EXPORTERS if isinstance(e, Exporter) and e.name != "schedule"]


@pytest.mark.parametrize("exporter", OF_PLANS, ids=lambda e: e.name)
def test_a_format_goes_to_standard_output_or_a_file(
    capsys: Captured, saved: Path, tmp_path: Path, exporter: Exporter
) -> None:
    name = exporter.name
    assert main(["export", str(saved), "--to", name]) == 0
    out, err = capsys.readouterr()
    assert (out[-1], err) == ("\n", "")
    path = tmp_path / "made"
    assert main(["export", str(saved), "--to", name, "-o", str(path)]) == 0
    assert capsys.readouterr() == ("", f"saved {path}\n")
    assert path.read_text("utf-8") == out


def test_help_lists_the_formats(capsys: Captured) -> None:
    assert main(["export", "--help"]) == 0
    text = capsys.readouterr().out
    for exporter in EXPORTERS:
        assert f"\n  {exporter.name:<15} {exporter.summary}" in text


def test_bad_input_is_one_line_and_exit_code_2(
    capsys: Captured, saved: Path, tmp_path: Path
) -> None:
    known = ", ".join(e.name for e in EXPORTERS)
    nowhere = tmp_path / "no" / "a.dot"
    cases = [
        (
            (saved, "--to", "pdf"),
            f"partita: --to pdf: there is no such format; want one of {known}",
        ),
        (
            (saved, "--to", "schedule"),
            "partita: --to schedule: the plan has one stage, and so no schedule; want "
            "one of a mesh with an axis pp, e.g. --mesh pp=2,dp=2",
        ),
        (
            (saved, "--to", "dot", "-o", nowhere),
            f"partita: -o {nowhere}: cannot be written: No such file or directory",
        ),
        (
            (saved, "--to", "python"),
            "partita: --to python needs the model: want TARGET behind the plan, e.g. "
            "partita export plan.json train.py:build --to python",
        ),
        (
            (saved, "x.py:f", "--to", "pt2"),
            "partita: --to pt2 is no text; want -o FILE.zip",
        ),
        (
            (saved, "x.py:f", "--to", "dot"),
            "partita: TARGET x.py:f: --to dot is of the plan alone; want none",
        ),
        (
            (saved,),
            "partita export: the following arguments are required: --to; see partita "
            "export --help",
        ),
    ]
    for argv, message in cases:
        assert main(["export", *map(str, argv)]) == 2
        assert capsys.readouterr() == ("", f"{message}\n")


def test_programs_are_of_the_targets_model(
    capsys: Captured, target: str, tmp_path: Path
) -> None:
    plan = str(tmp_path / "plan.json")
    assert main(["plan", target, "--mesh", "dp=2", "-o", plan]) == 0
    capsys.readouterr()
    assert main(["export", plan, target, "--to", "python"]) == 0
    made = capsys.readouterr().out
    assert "\ndef step_0(" in made
    assert main(["export", plan, "--to", "python", target]) == 0
    assert capsys.readouterr().out == made
    other = tmp_path / "other.py"
    other.write_text(MODEL.replace("32", "48"))
    assert main(["export", plan, f"{other}:build", "--to", "python"]) == 2
    assert "the plan was made for another model" in capsys.readouterr().err
