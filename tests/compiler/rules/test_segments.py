import torch
from torch import Tensor, nn

from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import Program, Value, op_name
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.segments import Segmentations, find_segmentations
from partita.compiler.rules.table import default_rules


class FusedProjection(nn.Module):
    """One matrix for q, k and v, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.fused(x).split([8, 8, 8], dim=-1)
        return (q * k * v).sum()


class Heads(nn.Module):
    """Heads beside each other in the channel dim."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.project(x).view(4, 2, 4) ** 2).sum()


def segmentations(model: nn.Module) -> tuple[Program, Segmentations]:
    program = capture(model, (torch.ones(4, 8),), {}).program
    factors = {
        node: rule_and_factors(default_rules, call_of(node))[1]
        for node in program.calls()
    }
    return program, find_segmentations(factors)


def of_parameter(model: nn.Module, name: str) -> dict[int, set[tuple[int, ...]]]:
    program, found = segmentations(model)
    (node,) = [n for n, role in program.placeholders() if role.name == name]
    return {
        dim: set(of_dim)
        for (value, dim), of_dim in found.of_dim.items()
        if value == Value(node, 0) and of_dim
    }


def test_pieces_of_a_split_reach_the_weight_and_the_bias() -> None:
    assert of_parameter(FusedProjection(), "fused.weight") == {0: {(8, 8, 8)}}
    assert of_parameter(FusedProjection(), "fused.bias") == {0: {(8, 8, 8)}}


def test_inner_factor_of_a_view_reaches_the_weight() -> None:
    assert of_parameter(Heads(), "project.weight") == {0: {(4, 4)}}


def test_they_reach_the_gradient_too() -> None:
    program, found = segmentations(FusedProjection())
    products = [node for node in program.calls() if op_name(node) == "aten.mm.default"]

    tried = [found.of_factor[node] for node in products]

    assert {name for factors in tried for name in factors} <= {"m", "n"}
    assert any((8, 8, 8) in segs for factors in tried for segs in factors.values())


def test_nothing_is_segmented_where_nothing_is_cut() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.project(x).relu().sum()

    _, found = segmentations(Plain())

    assert not found.of_dim
    assert not any(found.of_factor.values())
