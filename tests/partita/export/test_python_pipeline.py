"""An exported pipeline runs where there is no Partita, with the model's own numbers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.compiler.export.hostile import NAME
from tests.e2e.test_pipelines import drawn, search_of
from tests.models.dropout import with_dropout
from tests.models.pipelines import PIPELINES
from tests.models.zoo import ZOO
from tests.partita.export.own_step import (
    Built,
    eager_step,
    exported_step,
    staged_step,
    tensors_of,
    worst_difference,
)
from torch import nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.export.python import write_python
from partita.lowering import capture_for, lower
from partita.microbatched import in_microbatches
from partita.verifying.virtual_stages import VirtualStages

MODELS = PIPELINES | ZOO

Exported = tuple[Built, pt.Plan, bytes]
"""A model with its inputs, a plan of it, its file."""

SLOW = (
    ("gpt2", "pp=2", 2, "1f1b", 1),
    ("gpt2", "pp=2,tp=2", 2, "1f1b", 1),
    ("gpt2", "pp=2,dp=2", 4, "zero-bubble", 1),
    ("tied", "pp=4", 4, "zero-bubble", 1),
    ("hourglass", "pp=2,dp=2", 2, "interleaved", 2),
    ("tied", "pp=2", 4, "frugal", 1),
)


@cache
def cut_anywhere() -> Exported:
    """Return GPT-2 in two stages, cut where chance has it: quick to plan."""
    built = model, args, kwargs = ZOO["gpt2"]()
    captured = in_microbatches(capture(model, args, kwargs), 2, pt.default_rules)
    search = search_of(captured, "pp=2", microbatches=2, schedule="1f1b")
    plan = drawn(search, 1)
    return built, plan, write_python(model, plan)


def exported(name: str, mesh: str, count: int, schedule: str, stages: int) -> Exported:
    built = model, args, kwargs = MODELS[name]()
    options = pt.Options(microbatches=count, schedule=schedule, stages_per_rank=stages)
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    return built, plan, write_python(model, plan)


def difference(found: Exported, folder: Path) -> float:
    """Return how far the exported file is from the model itself."""
    built, plan, source = found
    theirs = exported_step(source, built, plan.mesh.size, folder)
    ours = eager_step(built, plan)
    held = {name for own in ours for name in own} - {"loss"}
    assert held == {name for name, _ in built[0].named_parameters()}
    return worst_difference(ours, theirs)


@pytest.mark.dist
def test_a_pipeline_with_tied_embeddings_runs_so(tmp_path: Path) -> None:
    found = cut_anywhere()
    assert any(len(p.homes) > 1 for p in found[1].parameters.values())
    assert difference(found, tmp_path / "run") <= 1e-6


def test_rows_and_wires_are_those_of_the_plan() -> None:
    _, plan, source = cut_anywhere()
    text = source.decode()
    assert "import partita" not in text
    assert "ops.partita" not in text
    module = ast.parse(text)
    tables = {
        node.targets[0].id: node.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(tables["ROWS"]) == list(plan.schedule.rows)
    wires = tables["WIRES"]
    assert isinstance(wires, ast.List)
    assert len(wires.elts) == len(plan.transfers)
    for transfer in plan.transfers:
        assert f"    # {transfer.kind}: {transfer.name}, " in text
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    for stage in (0, 1):
        assert {f"forward_{stage}_0", f"backward_{stage}_0"} <= defined


def test_hostile_names_stay_in_their_quotes() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.head = nn.Linear(4, 4)

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.head(torch.tanh(self.layer(batch[NAME]))).square().mean()

    model, batch = Odd(), {NAME: torch.randn(4, 4)}
    captured = in_microbatches(capture(model, (batch,), {}), 2, pt.default_rules)
    search = search_of(captured, "pp=2", microbatches=2, schedule="gpipe")
    plan = drawn(search, 0)
    schedule = plan.schedule
    plan = replace(plan, schedule=replace(schedule, name=NAME))
    text = write_python(model, plan).decode()
    assert text.replace("\n", "").isprintable()
    tree = ast.parse(text)
    plain = ast.parse(write_python(model, replace(plan, schedule=schedule)))
    assert [type(x) for x in tree.body] == [type(x) for x in plain.body]
    constants = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    assert f"batch.{NAME}" in constants


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda c: "-".join(map(str, c)))
def test_more_pipelines_run_so_too(
    case: tuple[str, str, int, str, int], tmp_path: Path
) -> None:
    assert difference(exported(*case), tmp_path / "run") <= 1e-6


@pytest.mark.dist
@pytest.mark.slow
def test_what_is_drawn_is_what_our_program_draws(tmp_path: Path) -> None:
    built = model, args, kwargs = with_dropout("gpt2")
    options = pt.Options(microbatches=2, schedule="1f1b")
    plan = pt.plan(model, *args, mesh="pp=2,tp=2", options=options, **kwargs)
    source = write_python(model, plan)
    theirs = exported_step(source, built, 4, tmp_path / "run")
    stages = VirtualStages.of(plan, lower(capture_for(model, plan), plan))
    ours = staged_step(built, plan, stages)
    assert worst_difference(ours, theirs) <= 1e-6
    assert worst_difference(eager_step(built, plan), theirs) > 1e-3


@pytest.mark.dist
@pytest.mark.slow
def test_what_is_for_inference_leaves_its_outputs(tmp_path: Path) -> None:
    built = model, args, _ = PIPELINES["chain"]()
    plan = pt.plan(model, *args, mesh="pp=2", options=pt.Options(train=False))
    first, last = exported_step(write_python(model, plan), built, 2, tmp_path / "run")
    assert first == {}
    difference = last["output:output"] - model(*args).detach()
    assert float(difference.abs().max()) <= 1e-6


def torchrun(built: Built, source: bytes, folder: Path, *arguments: str) -> list[str]:
    """Return what two ranks of the exported file print, run from a shell."""
    (folder / "exported.py").write_bytes(source)
    torch.save(built[0].state_dict(), folder / "weights.pt")
    torch.save(tensors_of(built), folder / "batch.pt")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "exported.py", "weights.pt", "batch.pt"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ran = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def check_losses(built: Built, lines: list[str]) -> None:
    """Check that printed losses are those of the model trained by itself."""
    model, args, kwargs = built
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, line in enumerate(lines, 1):
        output = model(*args, **kwargs)
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        word, told, _, value = line.split()
        assert (word, int(told)) == ("step", number)
        assert float(value) == pytest.approx(float(loss.detach()), abs=2e-6)


@pytest.mark.dist
@pytest.mark.slow
def test_it_trains_under_torchrun(tmp_path: Path) -> None:
    built, _, source = exported(*SLOW[0])
    lines = torchrun(built, source, tmp_path, "3")
    assert len(lines) == 3
    check_losses(built, lines)


@pytest.mark.dist
@pytest.mark.slow
def test_it_trains_where_a_rank_has_no_parameter(tmp_path: Path) -> None:
    built = model, args, kwargs = PIPELINES["chain"]()
    captured = in_microbatches(capture(model, args, kwargs), 2, pt.default_rules)
    search = search_of(captured, "pp=2", microbatches=2, schedule="1f1b")
    plans = (drawn(search, seed) for seed in range(100))
    plan = next(
        plan
        for plan in plans
        if all(parameter.homes == (0,) for parameter in plan.parameters.values())
    )
    lines = torchrun(built, write_python(model, plan), tmp_path, "2")
    assert len(lines) == 2
    check_losses(built, lines)


@pytest.mark.dist
@pytest.mark.slow
def test_it_infers_under_torchrun(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), torch.randn(8, 4)
    plan = pt.plan(model, x, mesh="pp=2", options=pt.Options(train=False))
    built: Built = model, (x,), {}
    lines = torchrun(built, write_python(model, plan), tmp_path)
    assert lines == ["step 1  rank 1  output (8, 2)"]
