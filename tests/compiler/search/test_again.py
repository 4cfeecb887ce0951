"""What patterns ask to be made again, on a small model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partita.compiler.errors import BadOptions
from partita.compiler.ir.again import again_key, is_again
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Phase
from partita.compiler.plan.plan import Plan
from partita.options import Options
from partita.planning import plan as make_plan

GATHER = "parameter:blocks.1.up.weight#0 -> (B,)"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().sum()


def planned(*patterns: str, train: bool = True) -> Plan:
    model = Small()
    pins = {name: "S(0) use=B" for name, _ in model.named_parameters()} | {"x": "S(0)"}
    options = Options(pins=pins, recompute=patterns, train=train)
    return make_plan(model, torch.ones(4, 8), mesh=Mesh(dp=2), options=options)


def test_a_module_makes_all_again_but_what_leaves_it() -> None:
    found = planned("blocks.*").recompute
    assert found == (
        "blocks.0.up/t/0",
        "blocks.0.up/addmm/0",
        "blocks.0/gelu/0",
        "blocks.1.up/t/0",
        "blocks.1.up/addmm/0",
        "blocks.1/gelu/0",
    )
    assert planned("blocks.0").recompute == found[:3]
    assert planned("blocks.?.up").recompute == ()  # its output leaves it


def test_a_node_is_made_again_by_its_key() -> None:
    plan = planned("*/gelu/0")
    assert plan.recompute == ("blocks.0/gelu/0", "blocks.1/gelu/0")
    clone = plan.nodes["blocks.0/gelu/0~again"]
    original = plan.nodes["blocks.0/gelu/0"]
    assert clone.phase is Phase.BACKWARD_INPUT
    assert (clone.seconds, clone.signature) == (original.seconds, original.signature)
    assert clone.alternatives == ()
    without = planned()
    compute = [p.predicted.seconds_by_part["compute"] for p in (plan, without)]
    assert compute[0] == pytest.approx(compute[1] + 2 * original.seconds)
    order = list(plan.order)
    assert [key for key in order if not is_again(key)] == list(without.order)
    assert order[order.index("blocks.1/gelu/0~again") + 1].endswith("~grad/mm/1")


def test_parameters_are_gathered_again() -> None:
    plan = planned("parameter:blocks.1.up.*")
    assert plan.recompute == (GATHER,)
    first, second = (b for b in plan.boxings if b.key in (GATHER, again_key(GATHER)))
    assert first.consumers == ("blocks.1.up/t/0",)
    assert second.consumers == ("blocks.1.up/addmm/0~grad/mm/0",)
    assert (first.lowering, first.producer) == (second.lowering, second.producer)
    without = planned()
    (step,) = first.lowering
    size = plan.mesh.size  # as an exchange it takes the shard for each rank
    assert step.kind == "all_gather"
    kinds = [
        next(t for t in p.collectives if t.kind == "all_to_all")
        for p in (plan, without)
    ]
    assert kinds[0].count == kinds[1].count + 1
    assert kinds[0].bytes == kinds[1].bytes + size * step.payload


def test_a_boxing_is_made_again_by_its_key() -> None:
    assert planned(GATHER).recompute == (GATHER,)
    assert planned(GATHER.replace("1.up", "0.up")).recompute == ()  # of the forward


def test_nothing_is_made_again_without_a_backward() -> None:
    assert planned("blocks.*", "parameter:*", train=False).recompute == ()


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("layers.*", "module"),
        ("*/silu/0", "node"),
        ("parameter:layers.*", "parameter, buffer or input"),
    ],
)
def test_a_pattern_of_nothing_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(BadOptions) as caught:
        planned(pattern)
    assert str(caught.value) == f"recompute: {pattern!r} is the name of no {what}"


def test_one_pattern_is_no_sequence() -> None:
    with pytest.raises(BadOptions, match=r"want a sequence of names, like \('h',\)"):
        Options(recompute="h")
