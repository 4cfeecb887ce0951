"""Bundles replay without the model, and refuse what is damaged."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partita as pt
from partita.cli.main import main
from partita.compiler.errors import BadOptions, BadPlan
from partita.compiler.ir.program import InputKind
from partita.verifying.bundle import ABOUT, GRAPH, PLAN, Bundle, Range

Captured = pytest.CaptureFixture[str]


class Words(nn.Module):
    """An embedding, a running mean, labels of which some count nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 12)
        self.drop = nn.Dropout(0.25)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.drop(self.embed(ids)).mean(1))
        return nn.functional.cross_entropy(self.head(x), labels)


def words() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    labels = torch.randint(0, 12, (8,))
    labels[:2] = -100
    return Words(), (torch.randint(0, 12, (8, 4)), labels), {}


def planned(mesh: str = "dp=2,tp=2", **options: Any) -> pt.Plan:
    model, args, kwargs = words()
    asked: dict[str, Any] = {
        "microbatches": 1,
        "pins": {"head.weight": "(B, S(0))"},
        **options,
    }
    return pt.plan(model, *args, mesh=mesh, options=pt.Options(**asked), **kwargs)


@cache
def bundled() -> Bundle:
    """Return a bundle, made once: nothing changes it."""
    return Bundle.of(*words(), planned())


def saved(folder: Path, made: bytes) -> str:
    path = folder / "report.bundle.zip"
    path.write_bytes(made)
    return str(path)


def test_a_bundle_replays_as_it_did(tmp_path: Path) -> None:
    bundle = bundled()
    assert bundle.about["replayed"]["ok"]
    loaded = Bundle.load(saved(tmp_path, bundle.save()))
    report = loaded.replay()
    assert report.ok
    assert {"loss", "embed.weight", "head.bias"} <= set(report.errors)
    assert "buffer:norm.running_mean" in report.errors
    assert str(report.max_error) == bundle.about["replayed"]["max_error"]
    assert loaded.save() == bundle.save()


def test_it_holds_plan_graph_shapes_seed_and_versions_but_no_weights() -> None:
    archive = zipfile.ZipFile(io.BytesIO(bundled().save()))
    assert set(archive.namelist()) == {PLAN, GRAPH, ABOUT}
    about = json.loads(archive.read(ABOUT))
    assert about["seed"] == 0
    assert about["versions"]["torch"] == torch.__version__
    assert about["shapes"] == {"ids": "i64[8, 4]", "labels": "i64[8]"}
    assert about["ranges"]["labels"][2] == -100
    entering = [json.loads(line) for line in archive.read(GRAPH).splitlines()]
    parameters = [line for line in entering if line.get("enters") == "parameter"]
    assert len(parameters) == 5
    assert not any("value" in line for line in parameters)


def test_values_are_those_of_the_seed() -> None:
    plan = planned()
    one, same, other = (Bundle.of(*words(), plan, seed) for seed in (1, 1, 2))
    key = InputKind.PARAMETER, "head.weight"
    drawn = [b._values()[key] for b in (one, same, other)]  # pyright: ignore[reportPrivateUsage]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_seeds_are_those_that_torch_takes() -> None:
    plan = planned()
    for seed in (-(1 << 63), (1 << 64) - 1):
        assert Bundle.of(*words(), plan, seed).about["replayed"]["ok"]
    for seed in (-(1 << 63) - 1, 1 << 64):
        with pytest.raises(BadOptions, match=r"^seed: found one of 6[45] bits, wanted"):
            Bundle.of(*words(), plan, seed)


def test_the_largest_integer_is_no_error() -> None:
    own = Range.of(torch.tensor([(1 << 63) - 1]))
    assert own.draw((2,), torch.Generator()).tolist() == [(1 << 63) - 2] * 2


def test_marks_among_integers_stay_marks() -> None:
    own = Range.of(torch.tensor([3, -100, 7]))
    assert own == (3, 7, -100)
    drawn = own.draw((1000,), torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {-100, 3, 4, 5, 6, 7}


@pytest.mark.slow
def test_it_replays_in_another_process_without_the_model(tmp_path: Path) -> None:
    path = saved(tmp_path, bundled().save())
    command = [sys.executable, "-m", "partita", "verify", path, "--json"]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        command, cwd=tmp_path, env=known, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"]


def repacked(folder: Path, **texts: str) -> str:
    """Return a bundle of which some files are replaced."""
    archive = zipfile.ZipFile(io.BytesIO(bundled().save()))
    held = io.BytesIO()
    names = {"plan": PLAN, "graph": GRAPH, "about": ABOUT}
    changed = {names.get(name, name): text for name, text in texts.items()}
    with zipfile.ZipFile(held, "w") as other:
        for name in {*archive.namelist(), *changed}:
            content = changed.get(name)
            other.writestr(name, archive.read(name) if content is None else content)
    return saved(folder, held.getvalue())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"plan": "{}"}, "plan: version: found null, wanted 1"),
        ({"graph": "os.system\n"}, "line 1: JSONDecodeError: "),
        ({"graph": '{"op": "os.system", "args": []}\n'}, "line 1: found 'os.system', "),
        ({"about": "[]"}, "found a damaged bundle (TypeError: "),
        (
            {"about": '{"ranges": {}, "seed": 18446744073709551616}'},
            "seed: found one of 65 bits, wanted one from -2**63 to 2**64 - 1\n",
        ),
        (
            {"about": '{"ranges": {"ids": [0, 9223372036854775808]}, "seed": 0}'},
            "ranges: found one beyond integers of 64 bits\n",
        ),
        ({"other": "x"}, "found bundle.json, graph.txt, other, plan.json, wanted a "),
    ],
)
def test_damaged_bundles_are_one_line(
    tmp_path: Path, capsys: Captured, texts: dict[str, str], message: str
) -> None:
    path = repacked(tmp_path, **texts)
    assert main(["verify", path]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"partita: {path}: {message}")


def test_another_graph_is_refused(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(bundled().save()))
    graph = (
        archive.read(GRAPH).decode().replace("aten.addmm.default", "aten.mm.default")
    )
    with pytest.raises(BadPlan, match="the plan was made for another model"):
        Bundle.load(repacked(tmp_path, graph=graph)).replay()


def test_the_commands_make_and_replay_a_bundle(
    capsys: Captured, target: str, tmp_path: Path
) -> None:
    plan, path = str(tmp_path / "plan.json"), str(tmp_path / "report.zip")
    assert main(["plan", target, "--mesh", "dp=2", "-o", plan]) == 0
    assert main(["bundle", target, plan, "-o", path]) == 0
    assert capsys.readouterr().out.endswith("replayed here: ok\n")
    assert main(["verify", path]) == 0
    assert "ok" in capsys.readouterr().out
    none = tmp_path / "none.zip"
    for argv, message in (
        (
            ["verify", target],
            f"TARGET {target}: want plan.json behind it, or a bundle.",
        ),
        (["verify", str(none)], f"{none}: cannot be read: No such file or directory\n"),
        (["verify", plan + ".zip"], f"{plan}.zip: cannot be read: No such file"),
    ):
        assert main(argv) == 2
        assert capsys.readouterr().err.startswith(f"partita: {message}")
    none.write_text("text")
    assert main(["verify", str(none)]) == 2
    assert "found no zip of text" in capsys.readouterr().err
