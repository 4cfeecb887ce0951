"""A loss on the command line: found, refused in one line, taken wherever a plan is."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.cli.loss import load_loss, load_plan
from partita.cli.main import main
from partita.compiler.errors import BadOptions
from partita.compiler.plan.plan import Plan

Captured = pytest.CaptureFixture[str]

SOURCE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)
    return nn.Sequential(*layers), (torch.randn(4, 6),), {}

def build_scored():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), Mean()), (torch.randn(4, 6),), {}

class Mean(nn.Module):
    def forward(self, x):
        return x.mean()

class Waves(nn.Module):
    def forward(self, x):
        return x.sin().cos().exp().sin().mean()

def build_waves():
    return nn.Sequential(nn.Linear(512, 512), Waves()), (torch.randn(512, 512),), {}

def loss(out):
    return out.square().mean()

NUMBER = 3
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file with a model that returns no loss, one that does, a loss."""
    path = tmp_path_factory.mktemp("own") / "of_test_loss.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture(scope="module")
def plan(own: str) -> str:
    """Return the saved plan of the model with the loss."""
    path = str(Path(own).with_suffix(".json"))
    given = ["--mesh", "dp=2", "--loss", f"{own}:loss", "-o", path]
    assert main(["plan", f"{own}:build", *given]) == 0
    return path


def test_without_one_it_is_told_how_to_give_one(own: str, capsys: Captured) -> None:
    assert main(["plan", f"{own}:build", "--mesh", "dp=2"]) == 2
    said = capsys.readouterr().err
    assert "the loss is no scalar" in said
    assert said.endswith("or --loss file.py:function\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss", "--loss 'loss': want file.py:function or package.module:function"),
        ("none.py:loss", "--loss none.py:loss: there is no Python file 'none.py'"),
        ("{own}:los", "--loss {own}:los: {own} has no function los; did you mean loss"),
        ("{own}:NUMBER", "--loss {own}:NUMBER: {own} holds no function, but NUMBER"),
    ],
)
def test_what_is_no_function_is_refused(own: str, text: str, message: str) -> None:
    with pytest.raises(BadOptions) as caught:
        load_loss(text.format(own=own))
    assert str(caught.value).startswith(message.format(own=own))


def test_a_plan_wants_its_loss_and_no_other(own: str, plan: str) -> None:
    assert load_plan(plan, f"{own}:loss").loss_function is load_loss(f"{own}:loss")
    with pytest.raises(BadOptions, match="the plan is of a loss that its file cannot"):
        load_plan(plan, None)
    scored = str(Path(own).with_name("scored.json"))
    given = ["--mesh", "dp=2", "-o", scored]
    assert main(["plan", f"{own}:build_scored", *given]) == 0
    assert load_plan(scored, None).loss_function is None
    with pytest.raises(BadOptions, match="is of the model's own loss; want none"):
        load_plan(scored, f"{own}:loss")


def test_it_goes_wherever_the_model_does(
    own: str, plan: str, capsys: Captured, tmp_path: Path
) -> None:
    words, given = [f"{own}:build", plan], ["--loss", f"{own}:loss"]
    assert main(["verify", *words]) == 2
    assert "want --loss file.py:function" in capsys.readouterr().err
    assert main(["verify", *words, *given]) == 0
    for suffix in ("python", "pt2"):
        made = ["--to", suffix, "-o", str(tmp_path / suffix)]
        assert main(["export", *reversed(words), *made, *given]) == 0
    assert main(["export", plan, "--to", "dot", *given]) == 2
    assert "--to dot is of the plan alone; want none" in capsys.readouterr().err
    bundle = str(tmp_path / "own.zip")
    assert main(["bundle", *words, *given, "-o", bundle]) == 0
    assert main(["verify", bundle]) == 0
    assert main(["verify", bundle, *given]) == 2
    assert "a bundle has its own; want none" in capsys.readouterr().err


def test_a_plan_like_another_is_asked_for_it_too(
    own: str, plan: str, tmp_path: Path
) -> None:
    kept = str(tmp_path / "kept.json")
    words = ["plan", f"{own}:build", "--like", plan, "-o", kept]
    assert main([*words, "--loss", f"{own}:loss"]) == 0
    signatures = [
        {key: node.signature for key, node in found.nodes.items()}
        for found in map(Plan.load, (kept, plan))
    ]
    assert signatures[0] == signatures[1]


def test_what_is_made_again_is_asked_for(own: str, tmp_path: Path) -> None:
    path = str(tmp_path / "again.json")
    words = ["plan", f"{own}:build", "--mesh", "dp=2", "--loss", f"{own}:loss"]
    assert main([*words, "--recompute", "1/*", "-o", path]) == 0
    again = Plan.load(path)
    assert again.recompute == ("1/gelu/0",)


def test_small_ops_are_fused_where_that_is_asked_for(own: str, tmp_path: Path) -> None:
    path, words = str(tmp_path / "fused.json"), ["plan", f"{own}:build_waves"]
    for asked in ([], ["--fuse"]):
        assert main([*words, "--mesh", "dp=2", *asked, "-o", path]) == 0
        assert bool(Plan.load(path).fusion) is bool(asked)


@pytest.mark.dist
def test_ranks_run_with_it(
    own: str, plan: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["run", f"{own}:build", plan, "--steps", "1"]
    assert main([*words, "--loss", f"{own}:loss"]) == 0
    assert capfd.readouterr().out.startswith("step    1  loss ")
