"""Every file loads with ``torch.export.load``, and runs with our numbers."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.pipelines import FEW_CALLS
from tests.partita.export.own_op import OP, halved
from tests.partita.export.own_step import (
    Built,
    eager_step,
    own_step,
    staged_step,
    worst_difference,
)
from torch import nn

import partita as pt
from partita.compiler.errors import BadOptions
from partita.compiler.ir.program import InputKind, OutputKind
from partita.export.pt2 import write_pt2
from partita.lowering import capture_for, lower
from partita.runtime.feeds import FeedKey, shards_of
from partita.runtime.virtual import run_all
from partita.verifying.virtual_stages import Programs, VirtualStages


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).square().mean()


def mlp() -> Built:
    torch.manual_seed(0)
    return Mlp(), (torch.randn(6, 8),), {}


def opened(made: bytes) -> tuple[dict[str, Any], zipfile.ZipFile]:
    archive = zipfile.ZipFile(io.BytesIO(made))
    return json.loads(archive.read("manifest.json")), archive


def load(archive: zipfile.ZipFile, name: str) -> torch.export.ExportedProgram:
    return torch.export.load(io.BytesIO(archive.read(name)))


@pytest.fixture(scope="module")
def plan() -> pt.Plan:
    model, args, _ = mlp()
    pins = {"up.weight": "(B, S(0))", "down.weight": "(B, S(1))", "x": "(S(0), B)"}
    options = pt.Options(pins=pins, microbatches=1)
    return pt.plan(model, *args, mesh="dp=2,tp=2", options=options)


@pytest.fixture(scope="module")
def written(plan: pt.Plan) -> bytes:
    return write_pt2(mlp()[0], plan)


def test_loaded_programs_run_with_our_numbers(plan: pt.Plan, written: bytes) -> None:
    built = model, args, _ = mlp()
    manifest, archive = opened(written)
    assert sorted(manifest["ranks"]) == ["0", "1", "2", "3"]
    (lowered,) = lower(capture_for(model, plan), plan)
    ranks = lowered.of_all()
    loaded = [
        replace(local, graph_module=load(archive, entry["steps"][0]).graph_module)
        for local, (entry,) in zip(ranks, manifest["ranks"].values(), strict=True)
    ]
    values: dict[FeedKey, torch.Tensor] = {(InputKind.INPUT, "x"): args[0]}
    for name, parameter in model.named_parameters():
        values[InputKind.PARAMETER, name] = parameter.detach()
    with torch.no_grad():
        made = run_all(loaded, [shards_of(local, values) for local in loaded])
    for own, local, found in zip(own_step(built, plan), loaded, made, strict=True):
        for role, value in zip(local.outputs, found, strict=True):
            if role.kind in (OutputKind.LOSS, OutputKind.GRADIENT):
                assert value is not None
                torch.testing.assert_close(value, own[role.name], rtol=0, atol=1e-6)


def test_one_plan_makes_one_file_and_no_word_of_what_memory_held(
    plan: pt.Plan, written: bytes
) -> None:
    assert write_pt2(mlp()[0], plan) == written
    manifest, archive = opened(written)
    for name in manifest["files"]:
        examples = load(archive, name).example_inputs
        assert examples is not None
        assert not any(x.any() for x in examples[0] if isinstance(x, torch.Tensor))


def test_the_manifest_says_what_enters_and_leaves(written: bytes) -> None:
    manifest, archive = opened(written)
    (entry,) = manifest["ranks"]["3"]
    assert entry["coordinates"] == [1, 1]
    told = manifest["files"][entry["steps"][0]]
    by_name = {entry["name"]: entry for entry in told["inputs"]}
    assert by_name["up.weight"] == {
        "kind": "parameter", "name": "up.weight",
        "type": "f32[6, 8]", "placement": "(B, S(0))",
    }  # fmt: skip
    program = load(archive, entry["steps"][0])
    assert len(program.graph_signature.user_inputs) == len(told["inputs"])
    assert len(program.graph_signature.user_outputs) == len(told["outputs"])
    groups = {
        node.args[-1] for node in program.graph.nodes
        if str(node.target).startswith("_c10d_functional.all")
    }  # fmt: skip
    assert groups == {"stage0/dp", "stage0/tp"}


class Constant(nn.Module):
    """Multiplies by a tensor that its code makes and a buffer that is not saved."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((8, 4), 0.5)[:1], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return (self.layer(x) * made * self.scale).square().mean()


def test_what_no_state_dict_holds_comes_along() -> None:
    model, x = Constant(), torch.randn(4, 4)
    plan = pt.plan(model, x, mesh="dp=2")
    manifest, archive = opened(write_pt2(model, plan))
    held = torch.load(io.BytesIO(archive.read(manifest["constants"])))
    torch.testing.assert_close(held["buffer"], {"scale": model.scale})
    (entry,) = manifest["ranks"]["0"]
    entering = manifest["files"][entry["steps"][0]]["inputs"]
    (name,) = (e["name"] for e in entering if e["kind"] == "constant")
    wanted = {name: torch.tensor([1.0, 2.0, 3.0, 4.0])}
    torch.testing.assert_close(held["constant"], wanted)
    with pytest.raises(BadOptions, match="pt2: scale has no values on the meta device"):
        write_pt2(model.to("meta"), plan)


@pytest.mark.parametrize(
    ("schedule", "num_files"), [("1f1b", [2, 2]), ("zero-bubble", [2, 3])]
)
def test_stages_have_files_for_their_parts_which_run(
    schedule: str, num_files: list[int]
) -> None:
    built = model, batch, _ = FEW_CALLS["chain"]()
    options = pt.Options(microbatches=2, schedule=schedule)
    plan = pt.plan(model, *batch, mesh="pp=2,dp=2", options=options)
    manifest, archive = opened(write_pt2(model, plan))
    entries = [entry for (entry,) in manifest["ranks"].values()]
    assert [entry["stage"] for entry in entries] == [0, 0, 1, 1]
    first, same, last, _ = (
        [name for name in entry["steps"] if name is not None] for entry in entries
    )
    assert [len(set(first)), len(set(last))] == num_files  # stage 0 hands nothing back
    assert first == same
    assert not {*first} & {*last}
    assert len(manifest["files"]) == len(set(map(str, manifest["files"].values())))
    assert manifest["schedule"] == list(plan.schedule.rows)
    assert differ(built, plan, manifest, archive) <= 1e-6


def test_the_manifest_names_ops_of_the_model(written: bytes) -> None:
    model, plan, rules = halved()
    files = opened(write_pt2(model, plan, rules))[0]["files"].values()
    assert [told["model_ops"] for told in files] == [[OP]]
    others = opened(written)[0]["files"].values()
    assert not any(told["model_ops"] for told in others)


def differ(
    built: Built, plan: pt.Plan, manifest: dict[str, Any], archive: zipfile.ZipFile
) -> float:
    """Return how far loaded stages, run by the plan's schedule, are from the model."""
    loaded = {name: load(archive, name).graph_module for name in manifest["files"]}
    entries = list(manifest["ranks"].values())
    stages = VirtualStages.of(plan, lower(capture_for(built[0], plan), plan))

    def of_files(stage: int, word: str, programs: list[Programs]) -> list[Programs]:
        ranks = plan.stages[stage].ranks
        own = [next(e for e in entries[r] if e["stage"] == stage)[word] for r in ranks]
        return [
            [
                local if name is None else replace(local, graph_module=loaded[name])
                for local, name in zip(rows, (f[position] for f in own), strict=True)
            ]
            for position, rows in enumerate(programs)
        ]

    changed = [
        replace(
            own,
            parts=of_files(number, "steps", own.parts),
            bringing=of_files(number, "bringing", own.bringing),
            completing=of_files(number, "completing", own.completing),
        )
        for number, own in enumerate(stages.stages)
    ]
    found = staged_step(built, plan, replace(stages, stages=changed))
    held = {name for own in found for name in own}
    assert held == {"loss", *(name for name, _ in built[0].named_parameters())}
    return worst_difference(found, eager_step(built, plan))
