"""``partita diff`` and ``partita check``: figures, exit codes, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.compiler.plan.plan import Plan
from partita.page.page import render_diff_page

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def worse(saved: Path, tmp_path: Path) -> Path:
    """Return the file of a plan that takes more of everything."""
    data = json.loads(saved.read_text())
    data["predicted"]["seconds"] *= 2
    data["predicted"]["bytes"] *= 2
    data["boxings"][0]["lowering"][0]["bytes"] += 64
    data["boxings"][0]["bytes"] += 64
    path = tmp_path / "worse.json"
    path.write_text(json.dumps(data))
    return path


def test_diff_prints_what_moved_and_the_price(
    capsys: Captured, saved: Path, worse: Path
) -> None:
    assert main(["diff", str(saved), str(saved)]) == 0
    assert capsys.readouterr().out.startswith("the plans decide alike\n")
    assert main(["diff", str(saved), str(worse)]) == 0
    lines = [" ".join(x.split()) for x in capsys.readouterr().out.splitlines()]
    assert "on the wire 256 B 320 B +64 B (+25.0%)" in lines


def test_diff_writes_a_page_of_both(
    capsys: Captured, saved: Path, worse: Path, tmp_path: Path
) -> None:
    page = tmp_path / "diff.html"
    assert main(["diff", str(saved), str(worse), "-o", str(page)]) == 0
    wanted = render_diff_page(Plan.load(saved), Plan.load(worse))
    assert page.read_text() == wanted
    assert capsys.readouterr().err == f"saved {page}\n"


def test_diff_as_json_is_that_of_the_plans(
    capsys: Captured, saved: Path, worse: Path
) -> None:
    assert main(["diff", str(saved), str(worse), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = Plan.load(saved).diff(Plan.load(worse)).to_dict()
    assert found == json.loads(json.dumps(wanted))
    assert found["bytes"][0] == {"name": "memory", "before": 2048, "after": 4096}


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (["--max-memory", "2KiB"], 0),
        (["--max-memory", "2047"], 1),
        (["--max-comm", "256"], 0),
        (["--max-comm", "255"], 1),
        (["--max-seconds", "36us"], 0),
        (["--max-seconds", "35us"], 1),
        (["--max-seconds", "1"], 0),
        (["--max-memory", "1GiB", "--max-comm", "0"], 1),
    ],
)
def test_a_plan_is_held_to_its_limits(
    capsys: Captured, saved: Path, limits: list[str], code: int
) -> None:
    assert main(["check", str(saved), *limits]) == code
    out, err = capsys.readouterr()
    assert err == ""
    assert ("FAILED" in out) == (code == 1)


def test_a_plan_may_be_no_worse_than_another(
    capsys: Captured, saved: Path, worse: Path
) -> None:
    assert main(["check", str(worse), "--against", str(saved)]) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[-1] for line in lines] == ["FAILED"] * 3
    assert main(["check", str(saved), "--against", str(worse), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert {c["name"]: c["found"] for c in found["checks"]} == {
        "memory": 2048, "communication": 256, "step": 3.6e-5,
    }  # fmt: skip


def test_bad_input_is_one_line_and_exit_code_2(
    capsys: Captured, saved: Path, tmp_path: Path
) -> None:
    none = tmp_path / "none.json"
    cases = [
        (
            ("check", saved),
            "partita: give what the plan is to keep to: --max-memory, --max-comm, "
            "--max-seconds or --against",
        ),
        (
            ("check", saved, "--max-memory", "much"),
            "partita: --max-memory much: memory 'much' is no size; want e.g. '24GiB' "
            "or '512MiB'",
        ),
        (
            ("check", saved, "--max-seconds", "nan"),
            "partita: --max-seconds nan: want a number of seconds from 0 on",
        ),
        (
            ("check", saved, "--max-seconds", "soon"),
            "partita: --max-seconds soon: 'soon' is no time; want e.g. '1ms', in s, "
            "ms, us",
        ),
        (
            ("check", saved, "--against", none),
            f"partita: {none}: cannot be read: No such file or directory",
        ),
        (
            ("diff", saved, none),
            f"partita: {none}: cannot be read: No such file or directory",
        ),
    ]
    for argv, message in cases:
        assert main([str(word) for word in argv]) == 2
        assert capsys.readouterr() == ("", f"{message}\n")
