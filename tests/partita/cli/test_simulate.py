"""``partita simulate``: figures as text and JSON, traces, other hardware, refusals."""

import json
from pathlib import Path

import pytest
import torch

import partita as pt
from partita.cli.main import main
from partita.compiler.plan.plan import Plan

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a plan of two stages on two ranks each."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 16) for _ in range(4))
    plan = pt.plan(
        torch.nn.Sequential(*layers),
        torch.randn(8, 16),
        mesh="pp=2,dp=2",
        options=pt.Options(
            microbatches=4,
            schedule="1f1b",
            loss=lambda out: out.square().flatten(1).mean(1).mean(),
        ),
    )
    path = tmp_path_factory.mktemp("simulate") / "staged.plan.json"
    plan.save(path)
    return path


def test_it_prints_the_step_its_rows_and_its_links(
    capsys: Captured, staged: Path
) -> None:
    assert main(["simulate", str(staged)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    head, rows, links = out.rstrip("\n").split("\n\n")
    assert head.startswith("Sequential on mesh pp=2,dp=2, hardware cpu-gloo\nstep    ")
    assert "\nbubble  " in head
    assert [line.split()[:2] for line in rows.splitlines()[2:]] == [
        ["0-1", "0"],
        ["2-3", "1"],
    ]
    sent = [line[:14].rstrip() for line in links.splitlines()[2:]]
    assert sent == ["0    to row 1", "1    to row 0"]


def test_figures_as_json_are_those_of_the_plan(capsys: Captured, staged: Path) -> None:
    assert main(["simulate", str(staged), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = Plan.load(staged)
    assert found["hardware"] == found["plan"]["hardware"] == "cpu-gloo"
    assert found["seconds"] == pytest.approx(plan.predicted.seconds, rel=1e-9)
    # The plan counts what other microbatches saved at the peak of one, wherever it is.
    assert max(row["peak_bytes"] for row in found["rows"]) <= plan.predicted.bytes
    waits = sum(row["waiting_s"] for row in found["rows"])
    assert waits == pytest.approx(2 * found["seconds"] * found["bubble"])
    for row in found["rows"]:
        parts = row["compute_s"] + row["communication_s"] + row["waiting_s"]
        assert parts == pytest.approx(found["seconds"])
    assert found["estimated"] == []


def test_other_hardware_takes_another_time(capsys: Captured, staged: Path) -> None:
    argv = ["simulate", str(staged), "--json", "--hardware"]
    assert main([*argv, "cpu-gloo"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert own["seconds"] == pytest.approx(own["plan"]["seconds"], rel=1e-9)
    assert main([*argv, "h100-dgx"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert (other["hardware"], other["plan"]) == ("h100-dgx", own["plan"])
    assert other["seconds"] < own["seconds"]


def test_a_trace_is_saved(capsys: Captured, staged: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert main(["simulate", str(staged), "--trace", str(trace)]) == 0
    assert capsys.readouterr().err == f"saved {trace}\n"
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C", "s", "f"}


def test_calls_that_are_scaled_are_named(
    capsys: Captured, staged: Path, tmp_path: Path
) -> None:
    document = json.loads(staged.read_text("utf-8"))
    key = next(
        key for key, n in document["nodes"].items() if n["op"] == "aten.mm.default"
    )
    document["nodes"][key]["seconds"] *= 3
    changed = tmp_path / "changed.plan.json"
    changed.write_text(json.dumps(document))
    assert main(["simulate", str(changed), "--hardware", "h100-dgx"]) == 0
    assert (
        f"rough   1 calls are scaled, the plan tells too little of them: {key}\n"
        in (capsys.readouterr().out)
    )


def test_refusals_name_the_option(
    capsys: Captured, saved: Path, tmp_path: Path
) -> None:
    nowhere = tmp_path / "no" / "t.json"
    assert main(["simulate", str(saved), "--trace", str(nowhere)]) == 2
    assert capsys.readouterr().err == (
        f"partita: --trace {nowhere}: cannot be written: No such file or directory\n"
    )
    assert main(["simulate", str(saved), "--hardware", "h1000"]) == 2
    assert capsys.readouterr().err.startswith("partita: hardware 'h1000' is neither")
