"""The commands that need a model: plan, verify, run."""

import json
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.compiler.plan.plan import Plan

Captured = pytest.CaptureFixture[str]
PIN = "--pin=up.weight=(B, S(0))"


@pytest.fixture
def planned(target: str, tmp_path: Path) -> Path:
    path = tmp_path / "mlp.plan.json"
    words = ["plan", target, "--mesh", "dp=1,tp=2", PIN, "-o", str(path)]
    assert main(words) == 0
    return path


def test_plan_prints_and_saves_what_its_options_ask_for(
    capsys: Captured, planned: Path
) -> None:
    plan = Plan.load(planned)
    out, err = capsys.readouterr()
    assert out == f"{plan}\n"
    *_, last = err.splitlines()  # progress, if it took long
    assert last == f"saved {planned}"
    assert str(plan.mesh) == "dp=1,tp=2"
    assert dict(plan.options.pins) == {"up.weight": "(B, S(0))"}
    assert str(plan.parameters["up.weight"].placements.storage) == "(B, S(0))"


def test_plan_gives_figures_as_json(target: str, capsys: Captured) -> None:
    words = ["plan", target, "--mesh", "dp=2", "--inference", "--time-limit", "9"]
    given = ["--optimizer", "sgd", "--hardware", "cpu-gloo-free", "--json"]
    assert main([*words, *given]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["mesh"] == "dp=2"
    assert figures["parameters"]["up.weight"]["placements"]["gradient"] is None


def test_plan_of_a_model_that_needs_too_much_memory_is_bad_input(
    target: str, capsys: Captured
) -> None:
    room = ["--memory", "1KiB", "--time-limit", "2"]
    assert main(["plan", target, "--mesh", "dp=2", *room]) == 2
    *_, last = capsys.readouterr().err.splitlines()  # progress, if it took long
    assert last.startswith("partita: memory: ")


def test_verify_agrees_with_a_sound_plan(
    target: str, planned: Path, capsys: Captured
) -> None:
    assert main(["verify", target, str(planned)]) == 0
    assert capsys.readouterr().out.startswith("verify: ok: 5 tensors")
    assert main(["verify", target, str(planned), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["ok"] is True
    assert figures["max_error"] < 1e-9
    assert set(figures["errors"]) == {
        "loss",
        "up.weight",
        "up.bias",
        "down.weight",
        "down.bias",
    }


def test_verify_refuses_the_plan_of_another_model(
    target: str, saved: Path, capsys: Captured
) -> None:
    assert main(["verify", target, str(saved)]) == 2
    assert "the plan was made for another model" in capsys.readouterr().err


@pytest.mark.dist
def test_run_with_the_plan_of_another_model_is_bad_input(
    target: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "wider.py"
    other.write_text(
        Path(target.removesuffix(":build")).read_text().replace("32", "24")
    )
    saved = str(tmp_path / "wider.plan.json")
    assert main(["plan", f"{other}:build", "--mesh", "dp=1", "-o", saved]) == 0
    capfd.readouterr()
    assert main(["run", target, saved, "--steps", "1"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("partita: the plan was made for another model (Mlp, ")
    assert err.count("\n") == 1


@pytest.mark.dist
def test_run_trains_on_local_ranks(
    target: str, planned: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["run", target, str(planned), "--steps", "3", "--optimizer", "sgd"]
    assert main([*words, "--lr", "0.05", "--json"]) == 0
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if "loss" in line]
    assert [line.split()[:2] for line in lines] == [["step", str(i)] for i in (1, 2, 3)]
    figures = json.loads(out)
    assert len(figures["losses"]) == len(figures["seconds"]) == 3
    assert figures["losses"][2] < figures["losses"][0]


@pytest.mark.dist
def test_mixed_precision_is_planned_checked_and_run(
    target: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "mixed.plan.json")
    words = ["plan", target, "--mesh", "dp=2", "--precision", "float16"]
    assert main([*words, "--narrow-sums", "-o", saved]) == 0
    assert "training in float16" in capfd.readouterr().out
    assert Plan.load(saved).options.precision == "float16"
    assert main(["verify", target, saved]) == 0
    capfd.readouterr()
    words = ["run", target, saved, "--steps", "3", "--optimizer", "sgd"]
    assert main([*words, "--lr", "0.05", "--json"]) == 0
    losses = json.loads(capfd.readouterr().out)["losses"]
    assert losses[2] < losses[0]
    assert main(["plan", target, "--mesh", "dp=2", "--precision", "half"]) == 2
