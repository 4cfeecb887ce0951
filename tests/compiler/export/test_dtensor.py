"""The placements as Python run in plain PyTorch, with the numbers of the model."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compiler.export.hostile import NAME
from tests.compiler.export.nested_mlp import NestedMlp
from tests.models.momentum import MomentumEncoder
from tests.partita.export.own_step import Built, eager_step
from tests.torch_ranks import END, START, run_ranks
from torch import distributed as dist
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import partita as pt
from partita.compiler.capture.mixed_precision import autocasting
from partita.compiler.export.dtensor import write_dtensor
from partita.compiler.ir.dtensor import to_dtensor
from partita.compiler.plan.plan import Plan

STEP = """\
import placed
model, args, kwargs = load("model.pt")
mesh = placed.make_mesh("cpu")
model = placed.parallelize(model, mesh)
with placed.every_op():
    args, kwargs = placed.place_inputs(model, mesh, *args, **kwargs)
    output = model(*args, **kwargs)
    output = output if isinstance(output, torch.Tensor) else output.loss
    loss = output.full_tensor()
    loss.backward()
found = {"loss": (None, loss.detach())}
for key, value in model.named_parameters():
    name = key.replace("parametrizations.", "").removesuffix(".original")
    held = value.grad.redistribute(placements=value.placements)
    found[name] = str(value.placements), held.to_local()
save(found)
"""


def built(name: str) -> Built:
    """Return a model and its inputs."""
    if name == "mlp":
        torch.manual_seed(0)
        inputs = (torch.randn(8, 16),), {"batch": {"y": torch.randn(8, 8)}}
        return NestedMlp(), *inputs
    from tests.models.zoo import gpt2

    return gpt2()


def compared(name: str, mesh: str, pins: dict[str, str], folder: Path) -> None:
    """Check on two ranks, without Partita, that DTensors have the model's numbers."""
    from tests.models.zoo import tensor_parallel_pins

    model, args, kwargs = made = built(name)
    options = pt.Options(pins=pins or tensor_parallel_pins(model, 1), microbatches=1)
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    folder.mkdir()
    (folder / "placed.py").write_text(write_dtensor(plan))
    (folder / "script.py").write_text(START + STEP + END)
    torch.save(made, folder / "model.pt")
    run_ranks(folder / "script.py", 2)
    ours = eager_step(made, plan)
    worst: dict[str, float] = {}
    for rank, own in enumerate(ours):
        theirs = torch.load(folder / f"rank{rank}.pt")
        assert set(theirs) == set(own)
        for key, value in own.items():
            placed, found = theirs[key]
            if key != "loss":
                held = plan.parameters[key].placements.optimizer
                assert held is not None
                if "; " in str(held):
                    continue  # the same gradient, cut otherwise
                assert placed == str(to_dtensor(held))
            worst[key] = float((found - value).abs().max())
    assert len(worst) > 1
    assert max(worst.values()) <= 1e-6, worst


@pytest.mark.dist
def test_it_runs_in_plain_pytorch_with_the_models_numbers(tmp_path: Path) -> None:
    sharded = "storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(S(0))"
    pins = {"up.weight": sharded, "up.bias": "(S(0))", "down.weight": "(S(1))"}
    compared("mlp", "tp=2", pins, tmp_path / "run")


@pytest.mark.dist
@pytest.mark.slow
def test_language_models_and_zero_run_so_too(tmp_path: Path) -> None:
    pins = {"*.weight": "storage=(S(0)); use=(B)", "x": "(S(0))"}
    compared("mlp", "dp=2", pins, tmp_path / "mlp")
    compared("gpt2", "tp=2", {}, tmp_path / "gpt2")


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_the_forward_runs_in_the_precision_of_the_plan(precision: str | None) -> None:
    model, args, kwargs = built("mlp")
    options = pt.Options(precision=precision)
    plan = pt.plan(model, *args, mesh="dp=1", options=options, **kwargs)
    with autocasting(precision):
        loss: torch.Tensor = model(*args, **kwargs)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    made: dict[str, Any] = {}
    exec(write_dtensor(plan), made)
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = made["make_mesh"]("cpu")
        placed = made["parallelize"](model, mesh)
        with made["every_op"]():
            args, kwargs = made["place_inputs"](placed, mesh, *args, **kwargs)
            found = placed(*args, **kwargs).full_tensor()
            found.backward()
        assert torch.equal(found, loss)
        for name, parameter in placed.named_parameters():
            wanted = gradients[name]
            assert wanted is not None
            assert torch.equal(parameter.grad.full_tensor(), wanted), name
    finally:
        dist.destroy_process_group()


def test_the_source_names_every_placement(small: Plan) -> None:
    text = write_dtensor(small)
    assert "    'up.weight': [Replicate(), Shard(1)],\n" in text
    assert "    'x': [Shard(0), Replicate()],\n" in text
    assert "AXES = ('dp', 'tp')\nSIZES = (2, 2)\n" in text
    assert not {"partita"} & {
        a.name for a in ast.walk(ast.parse(text)) if isinstance(a, ast.alias)
    }


def test_hostile_names_stay_in_their_quotes(hostile: Plan, small: Plan) -> None:
    text = write_dtensor(hostile)
    assert text.count("\n") == write_dtensor(small).count("\n")
    tree = ast.parse(text)
    constants = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    assert {NAME, f"{NAME}.weight"} <= constants


def test_every_stage_of_a_pipeline_says_where_its_tensors_live(staged: Plan) -> None:
    made: dict[str, Any] = {}
    exec(write_dtensor(staged), made)
    homes = {n: p.homes[0] for n, p in staged.parameters.items()}
    for number, (told, stage) in enumerate(
        zip(made["STAGES"], staged.stages, strict=True)
    ):
        assert (told["ranks"], told["sizes"]) == (stage.ranks, stage.mesh.sizes)
        assert set(told["held"]) == {n for n, home in homes.items() if home == number}
        for name, placements in told["held"].items():
            own = staged.parameters[name].placements
            assert tuple(placements) == to_dtensor(own.optimizer or own.storage)
    entering = [set(told["inputs"]) for told in made["STAGES"]]
    assert entering == [{"ids"}, {"labels"}]


def test_what_stages_share_is_placed_in_each(staged: Plan) -> None:
    (name,) = (n for n, p in staged.parameters.items() if len(p.homes) > 1)
    made: dict[str, Any] = {}
    exec(write_dtensor(staged), made)
    assert [name in told["held"] for told in made["STAGES"]] == [True, False]
    assert [name in told["shared"] for told in made["STAGES"]] == [False, True]


def test_a_pipeline_says_its_precision(staged: Plan) -> None:
    narrow = replace(staged, options=replace(staged.options, precision="float16"))
    for plan, dtype in (staged, None), (narrow, torch.float16):
        made: dict[str, Any] = {}
        exec(write_dtensor(plan), made)
        assert made["PRECISION"] == dtype


def test_a_pipeline_says_what_runs_it_instead(staged: Plan) -> None:
    made: dict[str, Any] = {}
    exec(write_dtensor(staged), made)
    with pytest.raises(RuntimeError, match="--to python or --to pt2"):
        made["parallelize"](None, None)


def test_a_parameter_that_the_model_writes_to_is_placed() -> None:
    model, x, y = MomentumEncoder("in place"), torch.randn(4, 8), torch.randn(4, 8)
    pins = {"key.0.weight": "S(0)"}
    plan = pt.plan(model, x, y, mesh="dp=2", options=pt.Options(pins=pins))
    made: dict[str, Any] = {}
    exec(write_dtensor(plan), made)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        placed = made["parallelize"](model, made["make_mesh"]("cpu"))
        weight = placed.get_parameter("key.0.weight")
        assert weight.placements == (Shard(0),)
        assert not weight.requires_grad
    finally:
        dist.destroy_process_group()
