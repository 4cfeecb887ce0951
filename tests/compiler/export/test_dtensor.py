"""The placements as Python run in plain PyTorch, with the numbers of our program."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compiler.export.hostile import NAME

import partita as pt
from partita.compiler.export.dtensor import write_dtensor
from partita.compiler.ir.dtensor import to_dtensor
from partita.compiler.plan.plan import Plan
from partita.runtime.launch import launch
from partita.runtime.target import find_target


class Mlp(torch.nn.Module):
    """Two layers, a buffer that is used, and an input that is nested."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        found = self.down(torch.relu(self.up(x))) * self.scale
        return ((found - batch["y"]) ** 2).mean()


def mlp() -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    return Mlp(), (torch.randn(8, 16),), {"batch": {"y": torch.randn(8, 8)}}


def built(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model and its inputs; DTensor has no rule for fused attention on CPU."""
    if name == "mlp":
        return mlp()
    from tests.models.zoo import gpt2

    model, args, kwargs = gpt2()
    model.set_attn_implementation("eager")  # type: ignore[operator]
    return model, args, kwargs


def compare_on_rank(name: str, source: str, document: Any) -> dict[str, float]:
    """Run a step both ways; return the largest differences."""
    model, args, kwargs = built(name)
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    own = program.step(*args, **kwargs)
    model, args, kwargs = built(name)
    mesh = find_target(f"{source}:make_mesh")("cpu")
    model = find_target(f"{source}:parallelize")(model, mesh)
    with find_target(f"{source}:implicit_replication")():
        placed = find_target(f"{source}:place_inputs")
        args, kwargs = placed(model, mesh, *args, **kwargs)
        output = model(*args, **kwargs)
        output = output if isinstance(output, torch.Tensor) else output.loss
        loss: Any = output.full_tensor()  # type: ignore[attr-defined]
        loss.backward()
    worst = {"loss": float((loss - own).abs())}
    other = {
        key.replace("parametrizations.", "").removesuffix(".original"): value
        for key, value in model.named_parameters()
    }
    plan = pt.Plan.from_dict(document)
    for key, parameter in program.named_parameters():
        placements = plan.parameters[key].placements
        gradient: Any = other[key].grad
        assert parameter.grad is not None
        assert placements.optimizer is not None
        if any("; " in str(s) for s in placements.optimizer.shardings):
            continue  # the same gradient, cut otherwise
        held = to_dtensor(placements.optimizer)
        assert other[key].placements == held
        local = gradient.redistribute(placements=held).to_local()
        worst[key] = float((local - parameter.grad).abs().max())
    return worst


def compared(name: str, mesh: str, pins: dict[str, str], folder: Path) -> None:
    """Check on two ranks that both ways agree."""
    from tests.models.zoo import tensor_parallel_pins

    model, args, kwargs = built(name)
    options = pt.Options(pins=pins or tensor_parallel_pins(model, 1), microbatches=1)
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    source = folder / f"placed_for_test_{mesh[:2]}.py"
    source.write_text(write_dtensor(plan))
    what = (name, str(source), plan.to_dict())
    for worst in launch(f"{__file__}:compare_on_rank", 2, what, timeout_s=110.0):
        assert len(worst) > 1
        assert max(worst.values()) <= 1e-6, worst


@pytest.mark.dist
def test_it_runs_in_plain_pytorch_with_our_numbers(tmp_path: Path) -> None:
    sharded = "storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(S(0))"
    pins = {"up.weight": sharded, "up.bias": "(S(0))", "down.weight": "(S(1))"}
    compared("mlp", "tp=2", pins, tmp_path)


@pytest.mark.dist
@pytest.mark.slow
def test_language_models_and_zero_run_so_too(tmp_path: Path) -> None:
    pins = {"*.weight": "storage=(S(0)); use=(B)", "x": "(S(0))"}
    compared("mlp", "dp=2", pins, tmp_path)
    compared("gpt2", "tp=2", {}, tmp_path)


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


def test_a_pipeline_says_what_runs_it_instead(staged: Plan) -> None:
    made: dict[str, Any] = {}
    exec(write_dtensor(staged), made)
    with pytest.raises(NotImplementedError, match="--to python or --to pt2"):
        made["parallelize"](None, None)
