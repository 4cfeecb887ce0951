import json
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import COMMANDS, main
from partita.compiler.plan.plan import Plan

Captured = pytest.CaptureFixture[str]


def refusal(capsys: Captured, *argv: object) -> str:
    """Run a command that must exit with 2; return its one line."""
    assert main([str(word) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.rstrip("\n")


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_has_help_with_an_example(capsys: Captured, name: str) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: partita {name}" in text
    assert f"example:\n  partita {name} " in text


def test_help_lists_every_command(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n    {c.name:<8}" in text for c in COMMANDS)


def test_a_word_too_many_is_told_by_the_command(capsys: Captured) -> None:
    line = refusal(capsys, "show", "plan.json", "more\nwords", "--even")
    want = "partita show: unrecognized arguments: more\\nwords --even; see partita show"
    assert line == f"{want} --help"


def test_what_is_missing_is_told_at_once(capsys: Captured) -> None:
    line = refusal(capsys, "export")
    want = "partita export: the following arguments are required: plan.json, --to; see"
    assert line == f"{want} partita export --help"


def test_an_option_may_stand_in_front_of_the_last_word(
    capsys: Captured, tmp_path: Path
) -> None:
    none = tmp_path / "none.json"
    line = refusal(capsys, "verify", "x.py:f", "--json", none)
    assert line == f"partita: {none}: cannot be read: No such file or directory"
    line = refusal(capsys, "verify", "x.py:f", "--json", none, "more")
    want = "partita verify: unrecognized arguments: more; see partita verify --help"
    assert line == want


def test_show_prints_the_plan(capsys: Captured, saved: Path) -> None:
    assert main(["show", str(saved)]) == 0
    assert capsys.readouterr().out == f"{Plan.load(saved)}\n"
    assert main(["show", "--all", str(saved)]) == 0
    assert capsys.readouterr().out == f"{Plan.load(saved)}\n"


def test_show_gives_figures_as_json(capsys: Captured, saved: Path) -> None:
    assert main(["show", str(saved), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    document = Plan.load(saved).to_dict()
    assert figures == {key: document[key] for key in figures}
    assert figures["predicted"]["bytes"] == 2048
    assert "nodes" not in figures


def test_explain_prints_the_reasons(capsys: Captured, saved: Path) -> None:
    assert main(["explain", str(saved), "up.weight"]) == 0
    assert capsys.readouterr().out == f"{Plan.load(saved).explain('up.weight')}\n"


def test_explain_gives_its_part_of_the_document(capsys: Captured, saved: Path) -> None:
    assert main(["explain", str(saved), "up.weight", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["key"] == "parameter:up.weight"
    assert found["parameter"]["shape"] == [6, 10]
    assert len(found["node"]["alternatives"]) == 2
    assert main(["explain", str(saved), "down/mm/0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameter"] is None
    assert [b["lowering"][0]["kind"] for b in found["boxings"]] == ["all_reduce"]


def test_view_writes_the_page(capsys: Captured, saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["view", str(saved), "-o", str(page)]) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert main(["view", str(saved)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"saved {page}\nsaved {tmp_path / 'small.plan.html'}\n"


def test_bad_input_is_one_line_and_exit_code_2(
    capsys: Captured, saved: Path, tmp_path: Path, target: str
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"version": 7}')
    none = tmp_path / "none.json"
    cases = [
        (("show", none), f"partita: {none}: cannot be read: No such file or directory"),
        (("show", bad), f"partita: {bad}: version: found 7, wanted 1"),
        (("view", bad), f"partita: {bad}: version: found 7, wanted 1"),
        (
            ("explain", saved, "up.wait"),
            "partita: the plan has no parameter, input or node 'up.wait'; close to it: "
            "up.weight",
        ),
        (
            ("view", saved, "-o", tmp_path / "no" / "page.html"),
            f"partita: -o {tmp_path}/no/page.html: cannot be written: No such file or "
            "directory",
        ),
        (("verify", "x.py:f", bad), f"partita: {bad}: version: found 7, wanted 1"),
        (
            ("verify", "x.py:f", saved),
            "partita: TARGET x.py:f: there is no Python file 'x.py'",
        ),
        (
            ("run", "x.py:f", saved, "--steps", "0"),
            "partita: --steps 0: want 1 or more",
        ),
        (
            ("run", "x.py:f", saved, "--steps", "1", "--lr", "-1"),
            "partita: --lr -1.0: want 0 or more, and finite",
        ),
        (
            ("plan", target, "--devices", "4", "--mesh", "dp=4"),
            "partita: give --mesh, axes and sizes, e.g. --mesh dp=2,tp=2, or "
            "--devices, a number of ranks, to have the mesh searched",
        ),
        (
            ("plan", target),
            "partita: give --mesh, axes and sizes, e.g. --mesh dp=2,tp=2, or "
            "--devices, a number of ranks, to have the mesh searched",
        ),
        (
            ("plan", target, "--mesh", "dp"),
            "partita: mesh 'dp': found 'dp'; want NAME=SIZE, ...",
        ),
        (
            ("plan", target, "--mesh", "dp=2", "--microbatches", "0"),
            "partita: microbatches is 0; want a whole number from 1 on, or 'auto'",
        ),
        (
            ("plan", target, "--mesh", "dp=2", "--pin", "up.weight"),
            "partita: --pin 'up.weight': want NAME=PLACEMENT, e.g. --pin "
            "'h.0.weight=(S(0), B)'",
        ),
        (
            (),
            "partita: the following arguments are required: COMMAND; see partita "
            "--help",
        ),
        (
            ("run", "x.py:f", saved),
            "partita run: the following arguments are required: --steps; see partita "
            "run --help",
        ),
    ]
    for argv, message in cases:
        assert refusal(capsys, *argv) == message


def test_reader_may_go_away(saved: Path) -> None:
    command = [sys.executable, "-m", "partita", "show", str(saved)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_hostile_key_cannot_steer_the_terminal(
    capsys: Captured, tmp_path: Path
) -> None:
    data = tmp_path / "x.json"
    data.write_text(json.dumps({"version": 1, "\x1b[2J\n": 1}))
    assert refusal(capsys, "show", data).isprintable()
