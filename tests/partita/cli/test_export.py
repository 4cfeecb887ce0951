"""``partita export``: every format by its name, files, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.cli.main import main
from partita.exporters import EXPORTERS

Captured = pytest.CaptureFixture[str]

OF_PLANS = [e for e in EXPORTERS if e.name != "schedule"]


@pytest.mark.parametrize("exporter", OF_PLANS, ids=lambda e: e.name)
def test_a_format_goes_to_standard_output_or_a_file(
    capsys: Captured, saved: Path, tmp_path: Path, exporter: object
) -> None:
    name = exporter.name  # type: ignore[attr-defined]
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
            (saved,),
            "partita export: the following arguments are required: --to; see partita "
            "export --help",
        ),
    ]
    for argv, message in cases:
        assert main(["export", *map(str, argv)]) == 2
        assert capsys.readouterr() == ("", f"{message}\n")
