"""``partita diff`` and ``partita check``: figures, exit codes, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import partita as pt
from partita.cli.main import main
from partita.compiler.plan.plan import Plan
from partita.page.page import render_diff_page
from partita.whole_plans.recount import recount, whole_figures

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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a plan that was searched, and sends something."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 16))
    options = pt.Options(
        pins={"0.weight": "(S(0))", "input": "(S(0))"},
        loss=lambda out: out.square().sum(),
        bucket=0,
    )
    plan = pt.plan(model, torch.randn(8, 16), mesh="dp=2", options=options)
    path = tmp_path_factory.mktemp("kept") / "kept.json"
    plan.save(path)
    return path


@pytest.fixture
def edited(kept: Path, tmp_path: Path) -> Path:
    """Return the file of the same plan, whose figures promise more than it keeps."""
    data = json.loads(kept.read_text())
    data["predicted"]["seconds"] /= 1000
    data["predicted"]["bytes"] //= 1000
    for boxing in data["boxings"]:
        for step in boxing["lowering"]:
            step["bytes"] = 0
        boxing["bytes"] = 0
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def dearer(kept: Path, tmp_path: Path) -> Path:
    """Return the file of the plan on a machine that computes a tenth as fast."""
    data = json.loads(kept.read_text())
    device = data["hardware"]["device"]
    device["flops_per_s"] = {k: v / 10 for k, v in device["flops_per_s"].items()}
    path = tmp_path / "dearer.json"
    path.write_text(json.dumps(data))
    assert main(["check", str(path), "-o", str(path)]) == 0
    return path


FIGURES = ("memory", "communication", "step")
LIMITS: dict[str, str] = dict(
    zip(FIGURES, ("--max-memory", "--max-comm", "--max-seconds"), strict=True)
)


@pytest.mark.parametrize("name", FIGURES)
def test_a_plan_is_held_to_its_limits(capsys: Captured, kept: Path, name: str) -> None:
    figure = whole_figures(Plan.load(kept))[name]
    assert figure > 1e-6
    for limit, code in ((figure, 0), (figure * 1000, 0), (figure * 0.99, 1)):
        text = f"{limit:.12f}" if name == "step" else str(int(limit))
        exact = text if code or name != "step" else str(limit)
        assert main(["check", str(kept), LIMITS[name], exact]) == code
        out, err = capsys.readouterr()
        assert err == ""
        assert ("FAILED" in out) == (code == 1)
    both = ["--max-memory", "1GiB", "--max-comm", "0"]
    assert main(["check", str(kept), *both]) == 1


def test_a_plan_may_be_no_worse_than_another(
    capsys: Captured, kept: Path, dearer: Path
) -> None:
    capsys.readouterr()
    assert main(["check", str(dearer), "--against", str(kept)]) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[-1] for line in lines] == ["ok", "ok", "FAILED"]
    assert main(["check", str(kept), "--against", str(kept)]) == 0
    capsys.readouterr()
    assert main(["check", str(kept), "--against", str(dearer), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    figures = {c["name"]: c["found"] for c in found["checks"]}
    assert figures == whole_figures(Plan.load(kept))


def test_an_edited_plan_is_held_to_what_its_decisions_take(
    capsys: Captured, kept: Path, edited: Path, tmp_path: Path
) -> None:
    figures = whole_figures(Plan.load(kept))
    limit = str(figures["step"] / 2)
    assert Plan.load(edited).predicted.seconds < float(limit)
    assert main(["check", str(edited), "--max-seconds", limit]) == 1
    out, err = capsys.readouterr()
    assert "FAILED" in out
    assert err.startswith(f"partita: {edited}: counted anew, its figures are others: ")
    assert "communication 0 B -> " in err
    assert err.count("\n") == 1
    path = tmp_path / "counted.json"
    assert main(["check", str(edited), "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert whole_figures(Plan.load(path)) == pytest.approx(figures)
    assert main(["check", str(kept), "-o", str(path)]) == 0
    assert path.read_text() == kept.read_text()


def test_a_placement_that_was_edited_gets_the_boxings_that_it_wants(
    capsys: Captured, kept: Path, tmp_path: Path
) -> None:
    data = json.loads(kept.read_text())
    signature = data["nodes"]["0/addmm/0"]["signature"]
    assert signature["results"] == ["(S(0),)"]
    signature["operands"] = ["(B,)", "(B,)", "(B,)"]
    signature["results"] = ["(B,)"]
    path, counted = tmp_path / "moved.json", tmp_path / "counted.json"
    path.write_text(json.dumps(data))
    assert main(["check", str(path), "--max-memory", "1GiB"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"partita: {path}: boxings: found none of ")
    assert main(["check", str(path), "-o", str(counted)]) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith(f"partita: {path}: its placements want others: ")
    found = Plan.load(counted)
    assert {b.producer for b in found.boxings} >= {"0/addmm/0", "input:input"}
    assert found.predicted.seconds > Plan.load(kept).predicted.seconds


def test_calls_that_no_rule_prices_are_named(capsys: Captured, saved: Path) -> None:
    assert main(["check", str(saved), "--max-memory", "1GiB"]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert "no rule here prices 5 calls, which count as it states: " in last


def test_without_limits_the_figures_are_printed(
    capsys: Captured, saved: Path, tmp_path: Path
) -> None:
    assert main(["check", str(saved)]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.strip() == "found, no limit given"
    assert [row.split()[0] for row in rows] == ["memory", "communication", "step"]
    assert main(["check", str(saved), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert told["checks"] == []
    assert told["found"]["memory"] == recount(Plan.load(saved)).plan.predicted.bytes
    broken = tmp_path / "broken.json"
    text = saved.read_text()
    broken.write_text(text.replace('"order": [\n  "', '"order": [\n  "no/'))
    assert main(["check", str(broken)]) == 2


def test_bad_input_is_one_line_and_exit_code_2(
    capsys: Captured, saved: Path, tmp_path: Path
) -> None:
    none = tmp_path / "none.json"
    cases = [
        (
            ("check", saved, "--max-memory", "much"),
            "partita: --max-memory much: memory is 'much'; want e.g. '24GiB' or a "
            "whole number of bytes",
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
