"""The exported file runs where there is no Partita, with the numbers of our program."""

from __future__ import annotations

import ast
import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.partita.export.own_op import OP, halved
from tests.partita.export.own_step import (
    Built,
    exported_step,
    own_step,
    worst_difference,
)
from torch import nn

import partita as pt
from partita.export.python import write_python


class Layers(nn.Module):
    """Attention of which the heads can be split, dropout, norm, a buffer, a mask."""

    scale: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(16, 24)
        self.register_buffer("scale", torch.full((16,), 0.5), persistent=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = (
            part.unflatten(-1, (4, 4)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).split(16, -1)
        )
        mask = torch.ones(8, 8, dtype=torch.bool).tril()
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2))) * self.scale
        self.seen.add_(1)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


def layers() -> Built:
    torch.manual_seed(0)
    ids = torch.randint(0, 24, (4, 8))
    return Layers(), (ids, ids.roll(1, 1)), {}


PINS = {
    "qkv.weight": "(B, S(0; 16|16|16))",
    "out.weight": "(B, S(1))",
    "head.weight": "(B, S(0))",
    "embed.weight": "storage=(B, B); gradient=(B, S(0)); optimizer=(B, S(0))",
}


def planned(built: Built, mesh: str, **options: Any) -> pt.Plan:
    model, args, kwargs = built
    return pt.plan(model, *args, mesh=mesh, options=pt.Options(**options), **kwargs)


@cache
def exported() -> tuple[Built, pt.Plan, bytes]:
    """Return the layers, a plan of them and its file."""
    built = layers()
    plan = planned(built, "dp=1,tp=2", pins=PINS, microbatches=2)
    return built, plan, write_python(built[0], plan)


@pytest.mark.dist
def test_it_runs_without_partita_with_our_numbers(tmp_path: Path) -> None:
    built, plan, source = exported()
    text = source.decode()
    # Gathers and scatters are exchanges on this machine.
    assert {total.kind for total in plan.collectives} == {"all_to_all"}
    assert "dist.all_to_all_single(" in text
    assert "import partita" not in text
    assert "ops.partita" not in text
    theirs = exported_step(source, built, 2, tmp_path / "run")
    ours = own_step(built, plan)
    assert len(ours[0]) == len(list(built[0].parameters())) + 1
    assert worst_difference(ours, theirs) <= 1e-6


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drawn", "zero3", "mixed", "vit"])
def test_more_plans_run_so_too(kind: str, tmp_path: Path) -> None:
    from tests.models.storage_pins import storage_pins
    from tests.models.zoo import ZOO

    from partita.one_mesh.planner import Planner
    from partita.options import Options

    built = layers() if kind == "drawn" else ZOO["gpt2"]()
    if kind == "drawn":
        options = Options(fuse=True, microbatches=2)
        planner = Planner.of(*built, pt.Mesh(dp=4), options)
        plan = next(p for p in map(planner.random, range(100)) if p.fusion)
    elif kind in ("zero3", "mixed"):
        pins = storage_pins(built, "zero3", 1)
        precision = "bfloat16" if kind == "mixed" else None
        plan = planned(built, "dp=2", pins=pins, microbatches=2, precision=precision)
    else:
        built = ZOO["vit"]()
        options = Options(microbatches=1)
        plan = Planner.of(*built, pt.Mesh(dp=3), options).random(3)
    source = write_python(built[0], plan)
    theirs = exported_step(source, built, plan.mesh.size, tmp_path / "run")
    assert worst_difference(own_step(built, plan), theirs) <= 1e-6


@pytest.mark.dist
def test_products_that_are_one_are_so_there(tmp_path: Path) -> None:
    from tests.models import projected

    plan, (model, x) = projected.planned("tp=2"), projected.built()
    built: Built = model, (x,), {}
    source, apart = (
        write_python(model, each) for each in (plan, replace(plan, joined=()))
    )
    assert source.count(b"mm.default(") == apart.count(b"mm.default(") - 2
    theirs = exported_step(source, built, 2, tmp_path / "run")
    assert worst_difference(own_step(built, plan), theirs) <= 1e-6


def test_every_collective_says_why() -> None:
    text = exported()[2].decode()
    lines = [line.strip() for line in text.splitlines()]
    calls = [i for i, line in enumerate(lines) if line.startswith("dist.all_")]
    assert calls
    for i in calls:
        before = [
            line for line in lines[max(0, i - 4) : i] if line.startswith("# all_")
        ]
        assert before, lines[i]
        assert " -> " in before[-1]


class Shadowing(nn.Module):
    """Names its inputs as what an exported function calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, float: torch.Tensor, len: torch.Tensor) -> torch.Tensor:
        x = self.layer(float).masked_fill(len > 2, -torch.inf)
        return torch.softmax(x, -1).square().mean()


@pytest.mark.dist
def test_inputs_hide_nothing_that_functions_call(tmp_path: Path) -> None:
    built: Built = Shadowing(), (torch.randn(4, 4), torch.randn(4, 4)), {}
    plan = planned(built, "dp=2", microbatches=1)
    source = write_python(built[0], plan)
    assert b'float("-inf")' in source
    assert b", float_2, len_2, " in source
    theirs = exported_step(source, built, 2, tmp_path / "run")
    assert worst_difference(own_step(built, plan), theirs) <= 1e-6


def test_hostile_names_stay_in_their_quotes() -> None:
    name = 'x"\'];\\"}})>]]\n"""\x1b[2J#{0}$(id)\u202e\\'

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer(batch[name]).square().mean()

    model = Odd()
    plan = pt.plan(model, {name: torch.randn(4, 4)}, mesh="dp=2")
    text = write_python(model, plan).decode()
    assert text.replace("\n", "").isprintable()
    constants = {
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
    }
    assert f"batch.{name}" in constants


def test_ops_of_a_model_are_wanted_before_anything_runs(tmp_path: Path) -> None:
    model, plan, rules = halved()
    text = write_python(model, plan, rules).decode()
    runs = tmp_path / "exported.py"
    runs.write_text(text)
    assert "Model" in runpy.run_path(str(runs))

    runs.write_text(text.replace(OP.split(".")[0], "of_nobody"))
    with pytest.raises(ImportError) as found:
        runpy.run_path(str(runs))
    assert str(found.value) == (
        "torch.ops.of_nobody.halve.default is not registered: import what registers it"
    )
