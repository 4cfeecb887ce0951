"""The search problem of a model: who chooses what, and what is bound to what."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.compiler.search.hand_made import machine, planner
from tests.models import zoo
from tests.models.searched import searched
from torch import nn

from partita.compiler.errors import BadOptions, NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind, OutputRole, info
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.pose import Posed, pose
from partita.compiler.search.problem import SearchNode
from partita.compiler.search.within import Within

GRID, TP = Mesh(dp=2, tp=2), Mesh(tp=2)


def mlp(
    mesh: Mesh = TP, pins: dict[str, str] | None = None, optimizer: str = "adamw"
) -> Posed:
    model, args, _ = zoo.mlp()
    return planner(model, *args, mesh=mesh, pins=pins, optimizer=optimizer).posed


def node(posed: Posed, key: str) -> SearchNode:
    (found,) = [n for n in posed.problem.nodes if n.key == key]
    return found


def made(posed: Posed, key: str) -> set[str]:
    """Return the placements in which a node may make its first result."""
    return {str(c.signature.results[0]) for c in node(posed, key).choices}


def wanted(posed: Posed, key: str, operand: int = 0) -> set[str]:
    """Return the placements in which a node may want an operand."""
    return {str(c.signature.operands[operand]) for c in node(posed, key).choices}


def test_nodes_are_those_of_the_program_then_the_outputs() -> None:
    posed = mlp()
    program = posed.candidates.program
    keys = [info(n).key for n in program.nodes()]
    leaving = [f"{role.kind}:{role.name}" for role in program.outputs]
    assert [n.key for n in posed.problem.nodes] == keys + leaving
    role = OutputRole(OutputKind.GRADIENT, "up.weight")
    assert posed.problem.nodes[posed.index(role)].key == "gradient:up.weight"


def test_gradients_leave_as_parameters_are_stored() -> None:
    posed = mlp()
    keys = [n.key for n in posed.problem.nodes]
    ties = {(keys[tie.first], keys[tie.second]) for tie in posed.problem.ties}
    names = ("up.weight", "up.bias", "down.weight", "down.bias")
    assert ties == {(f"parameter:{n}", f"gradient:{n}") for n in names}
    for name in names:
        assert made(posed, f"parameter:{name}") == wanted(posed, f"gradient:{name}")


def test_the_loss_leaves_whole() -> None:
    assert wanted(mlp(GRID), "loss:loss") == {"(B, B)"}


def test_nothing_is_stored_or_leaves_partial() -> None:
    posed = mlp(GRID)
    for item, found in zip(posed.items, posed.problem.nodes, strict=True):
        for choice in found.choices:
            tensors = choice.signature.results
            if isinstance(item, OutputRole):
                tensors = choice.signature.operands
            elif item.op != "placeholder":
                continue
            assert not any(p.has_partial for p in tensors if p), found.key


def test_buffers_that_the_step_writes_leave_as_they_came() -> None:
    posed = planner(small.Normed(), small.batch(), mesh=TP).posed
    keys = [n.key for n in posed.problem.nodes]
    ties = {(keys[tie.first], keys[tie.second]) for tie in posed.problem.ties}
    assert ("buffer:bn.running_mean", "mutated-buffer:bn.running_mean") in ties
    assert (
        "buffer:bn.num_batches_tracked",
        "mutated-buffer:bn.num_batches_tracked",
    ) in ties


@pytest.mark.parametrize(
    ("optimizer", "passes", "kernels"),
    [
        ("sgd", 3, 1),
        ("momentum-sgd", 8, 3),
        ("adamw", 20, 8),
        ("fused-adamw", 7, 1),
    ],
)
def test_the_update_touches_what_is_stored(
    optimizer: str, passes: int, kernels: int
) -> None:
    posed = mlp(optimizer=optimizer)
    seconds = {
        str(c.signature.results[0]): c.seconds
        for c in node(posed, "parameter:up.weight").choices
        if c.held is not None and c.held.optimizer == c.signature.results[0]
    }
    device = machine().device
    whole = 64 * 32 * 4 * passes / device.memory_bytes_per_s
    launch_s = kernels * device.launch_s
    assert seconds["(B,)"] == pytest.approx(launch_s + whole)
    assert seconds["(S(0),)"] == pytest.approx(launch_s + whole / 2)


def test_frozen_parameters_have_no_update() -> None:
    posed = planner(small.Normed(), small.batch(), mesh=TP).posed
    assert {c.seconds for c in node(posed, "parameter:frozen").choices} == {0.0}
    assert min(c.seconds for c in node(posed, "parameter:lin.weight").choices) > 0


def test_pinned_parameter_has_one_storage() -> None:
    posed = mlp(pins={"up.weight": "S(0)"})
    assert made(posed, "parameter:up.weight") == {"(S(0),)"}
    assert wanted(posed, "gradient:up.weight") == {"(S(0),)"}
    assert len(wanted(posed, "up/t/0")) > 1


def test_pinned_use_binds_every_consumer() -> None:
    posed = mlp(pins={"up.bias": "S(0) use=B"})
    assert made(posed, "parameter:up.bias") == {"(S(0),)"}
    assert wanted(posed, "up/addmm/0") == {"(B,)"}
    alone = mlp(pins={"up.bias": "use=S(0)"})
    assert len(made(alone, "parameter:up.bias")) > 1
    assert wanted(alone, "up/addmm/0") == {"(S(0),)"}


def test_whole_use_holds_through_views() -> None:
    posed = mlp(pins={"up.weight": "S(0) use=B"})
    assert wanted(posed, "up/t/0") == {"(B,)"}
    assert wanted(posed, "up/addmm/0", 2) == {"(B,)"}


def test_pinned_node_makes_its_result_so() -> None:
    posed = mlp(pins={"up/addmm/0": "S(1)"})
    assert made(posed, "up/addmm/0") == {"(S(1),)"}


def test_tied_parameter_is_pinned_by_either_name() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    for name in ("table.weight", "head.weight"):
        posed = planner(small.Tied(), ids, mesh=TP, pins={name: "S(1)"}).posed
        assert made(posed, "parameter:table.weight") == {"(S(1),)"}


def test_what_a_pinned_input_splits_stays_split() -> None:
    posed = mlp(GRID, {"x": "(S(0), B)", "target": "(S(0), B)"})
    assert made(posed, "input:x") == {"(S(0), B)"}
    carriers = [("up/addmm/0", 1), ("gelu/0", 0), ("sub.Tensor/0", 1)]
    for key, operand in carriers:
        assert all(p.startswith("(S(0), ") for p in wanted(posed, key, operand))
    assert "(S(0), S(1))" in wanted(posed, "up/addmm/0", 1)  # sliced, for nothing


def test_input_pinned_in_its_use_is_used_so() -> None:
    posed = mlp(GRID, {"x": "(S(0), B) use=(S(0), B)"})
    assert wanted(posed, "up/addmm/0", 1) == {"(S(0), B)"}


@pytest.mark.parametrize(
    ("pins", "error", "message"),
    [
        (
            {"up.wieght": "B"},
            BadOptions,
            "pin 'up.wieght' names no parameter, buffer, input or node; did you mean "
            "'up.weight'",
        ),
        (
            {"up.weight": "S(3)"},
            BadOptions,
            "pin 'up.weight' is illegal for f32[64, 32]: placement (S(3),): S(3) names "
            "dim 3, but shape [64, 32] has 2 dims",
        ),
        (
            {"gelu/0": "P"},
            NoSolution,
            "pin 'gelu/0': gelu/0 (aten.gelu.default, tests/models/zoo.py:",
        ),
    ],
)
def test_pin_that_cannot_be_followed_is_named(
    pins: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        mlp(pins=pins)
    assert str(caught.value).startswith(message)


def test_use_that_no_rule_allows_is_named() -> None:
    norm = "blocks.a.0"
    pins = {f"{norm}.weight": "B use=P(sum)"}
    with pytest.raises(NoSolution) as caught:
        searched(planner(small.Chain("a"), small.batch(), mesh=TP, pins=pins))
    message = f"pin '{norm}.weight': {norm}/native_layer_norm/0 (aten.native_layer_norm"
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(") has no signature with that placement")


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split(4, -1)
        return (q * k * v).sum()


def test_fused_weights_may_be_split_by_segments() -> None:
    posed = planner(Fused(), small.batch(), mesh=TP).posed
    assert "(S(0; 4|4|4),)" in made(posed, "parameter:qkv.weight")
    assert "(S(0; 4|4|4),)" in made(posed, "parameter:qkv.bias")
    assert "(S(1; 4|4|4),)" in wanted(posed, "split.Tensor/0")


def test_boxings_are_priced_by_the_machine() -> None:
    posed = mlp()
    problem, device = posed.problem, machine()
    (bias,) = node(posed, "parameter:up.bias").result_types
    assert bias is not None
    seconds = problem.box_seconds(bias, Placement.parse("P"), Placement.parse("B"))
    cost = next(iter(device.links[0].costs.values()))
    assert seconds == pytest.approx(2 * cost.alpha_s + 256 / cost.bytes_per_s)


class Alike(nn.Module):
    """Three parameters of one type; two of them have one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = nn.Parameter(torch.randn(16))
        self.one = nn.Parameter(torch.randn(16))
        self.two = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.alone + (self.one + self.two)).square().mean()


def test_parameters_that_no_pin_names_choose_from_one_tuple() -> None:
    posed = planner(Alike(), torch.randn(8, 16), mesh=TP).posed
    alone, one, two = (node(posed, f"parameter:{n}") for n in ("alone", "one", "two"))
    assert alone.choices is one.choices is two.choices


def test_whose_gradient_is_pinned_with_another_chooses_as_that_asks() -> None:
    pins = {"two": "storage=B; gradient=B; optimizer=B"}
    posed = planner(Alike(), torch.randn(8, 16), mesh=TP, pins=pins).posed
    one, alone = (node(posed, f"parameter:{name}") for name in ("one", "alone"))
    assert len(one.choices) == len(made(posed, one.key))  # of each storage one
    assert len(alone.choices) > len(made(posed, alone.key))


def test_axes_that_are_decided_leave_each_parameter_its_own() -> None:
    free = planner(Alike(), torch.randn(8, 16), mesh=GRID).posed
    split, whole = (Placement.parse(text) for text in ("(S(0), B)", "(B, B)"))
    within = Within(
        (0,),
        {
            "parameter:alone": Signature((), (split,)),
            "parameter:one": Signature((), (whole,)),
        },
        {"parameter:alone": split, "parameter:one": whole},
    )
    candidates = free.candidates
    posed = pose(
        Candidates(
            candidates.program,
            candidates.rules,
            candidates.mesh,
            candidates.hardware,
            within,
        ),
        {},
    )
    assert made(posed, "parameter:alone") == {"(S(0), B)", "(S(0), S(0))"}
    assert made(posed, "parameter:one") == {"(B, B)", "(B, S(0))"}
