"""Known strategies come out of the search where they are the best, by their traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from torch import Tensor, nn

from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Boxing
from partita.compiler.plan.plan import Plan
from partita.options import Options
from partita.planning import plan as make_plan

at = Placement.parse


def communicating(plan: Plan) -> list[Boxing]:
    """Return the boxings that put bytes on the wire."""
    return [boxing for boxing in plan.boxings if boxing.bytes]


def test_tensor_parallel_gpt2_has_megatrons_all_reduces() -> None:
    model, args, kwargs = zoo.gpt2()
    pins = zoo.tensor_parallel_pins(model, 1)
    c_attn = "transformer.h.0.attn.c_attn.weight"
    assert pins[c_attn] == "(S(1; 64|64|64),)"
    plan = make_plan(
        model, *args, mesh=Mesh(tp=2), options=Options(pins=pins), **kwargs
    )
    hidden = zoo.BATCH * zoo.SEQUENCE * zoo.HIDDEN * 4
    found: dict[str, list[str]] = {"forward": [], "backward": []}
    for boxing in communicating(plan):
        (step,) = boxing.lowering
        assert (step.kind, step.payload) == ("all_reduce", hidden), str(boxing)
        phase = plan.nodes[boxing.consumers[0]].phase
        half = "forward" if phase is Phase.FORWARD else "backward"
        found[half].append(boxing.producer)
    layers = [f"transformer.h.{index}" for index in range(2)]
    assert found["forward"] == [
        f"{layer}.{part}.c_proj/addmm/0" for layer in layers for part in ("attn", "mlp")
    ]
    assert sorted(found["backward"]) == sorted(
        f"{layer}.{part}/addmm/0~grad/mm/0"
        for layer in layers
        for part in ("attn.c_attn", "mlp.c_fc")
    )
    assert plan.parameters[c_attn].placements.use == at("S(1; 64|64|64)")


def data_parallel_traffic(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the producers of reduced gradients, and of everything else reduced."""
    gradients: list[str] = []
    others: list[str] = []
    for boxing in communicating(plan):
        (step,) = boxing.lowering
        assert step.kind == "all_reduce", str(boxing)
        backward = plan.nodes[boxing.producer].phase is Phase.BACKWARD_WEIGHT
        is_gradient = any(user.startswith("gradient:") for user in boxing.consumers)
        (gradients if backward or is_gradient else others).append(boxing.key)
    return gradients, others


@pytest.mark.parametrize(("name", "scalars"), [("mlp", 1), ("gpt2", 2)])
def test_data_parallel_reduces_each_gradient_once(name: str, scalars: int) -> None:
    built = zoo.ZOO[name]()
    model, args, kwargs = built
    pins = zoo.data_parallel_pins(built, 1)
    plan = make_plan(
        model, *args, mesh=Mesh(dp=2), options=Options(pins=pins), **kwargs
    )
    gradients, others = data_parallel_traffic(plan)
    assert len(gradients) == len(list(model.parameters()))
    for boxing in communicating(plan):
        if boxing.key in others:
            assert boxing.lowering[0].payload <= 8, str(boxing)
    # The sum of the errors; where labels are ignored, also how many count.
    assert [key.partition("/")[0] for key in others] == (
        ["sum.dim_IntList"] if name == "mlp" else ["sum", "sum"]
    )
    assert len(others) == scalars


def wide(fast: str) -> Hardware:
    """Return a machine whose axis ``fast`` is a thousand times the other."""
    rates = {"a": 1e7, "b": 1e7} | {fast: 1e10}
    return machine(
        flops_per_s=1e11, memory_bytes_per_s=1e11, alpha_s=1e-7, bytes_per_s=1e7,
        fast=rates,
    )  # fmt: skip


def split_axes(plan: Plan) -> dict[str, str]:
    """Return, per parameter of two dims, the axes that split its storage."""
    return {
        name: "".join(
            axis
            for axis, sharding in zip(
                plan.mesh.names, parameter.placements.storage.shardings, strict=True
            )
            if str(sharding) != "B"
        )
        for name, parameter in plan.parameters.items()
        if len(parameter.shape) == 2
    }


def test_splits_follow_the_fast_axis() -> None:
    model = zoo.Perceptron(256, 1024)
    inputs = torch.zeros(64, 256), torch.zeros(64, 256)
    mesh = Mesh(a=2, b=4)
    for fast, slow in (("a", "b"), ("b", "a")):
        options = Options(hardware=wide(fast))
        plan = make_plan(model, *inputs, mesh=mesh, options=options)
        assert split_axes(plan) == {"up.weight": fast, "down.weight": fast}
        assert {total.axis for total in plan.collectives} == {fast}
        seconds = plan.predicted.seconds_by_part
        assert seconds[f"communication {fast}"] > 0
        assert f"communication {slow}" not in seconds


class Product(nn.Module):
    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(k, n))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w).square().sum()


@pytest.mark.parametrize("hardware", ["cpu-gloo", "h100-dgx", machine()])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("train", [False, True])
def test_weight_split_on_the_contracted_dim_is_never_gathered(
    hardware: str | Hardware, size: int, train: bool
) -> None:
    with torch.device("meta"):
        model, x = Product(4096, 4096), torch.ones(8, 4096)
    pins = {"x": "B", "w": "S(0)"}
    options = Options(hardware=hardware, pins=pins, train=train)
    plan = make_plan(model, x, mesh=Mesh(tp=size), options=options)
    assert all(boxing.producer != "parameter:w" for boxing in plan.boxings)
    forward = plan.nodes["mm/0"].signature
    assert str(forward) == "(S(1),), (S(0),) -> (P(sum),)"
    (sliced,) = [b for b in plan.boxings if b.producer == "input:x"]
    assert [step.kind for step in sliced.lowering] == ["slice"]
    assert sliced.bytes == 0


def test_weights_in_pieces_are_gathered_and_gradients_scattered() -> None:
    model, args, _ = zoo.mlp()
    pins = {name: "S(0) use=B" for name in ("up.weight", "down.weight")}
    pins |= {"x": "S(0)", "target": "S(0)"}
    options = Options(pins=pins, hardware=machine())
    plan = make_plan(model, *args, mesh=Mesh(dp=2), options=options)
    for name in ("up", "down"):
        key = f"parameter:{name}.weight"
        (gathered,) = [b for b in plan.boxings if b.producer == key]
        assert [step.kind for step in gathered.lowering] == ["all_gather"]
        user = f"gradient:{name}.weight"
        (scattered,) = [b for b in plan.boxings if user in b.consumers]
        assert [step.kind for step in scattered.lowering] == ["reduce_scatter"]


class Block(nn.Module):
    """The half of a transformer's layer that has most of its weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return (x + self.down(hidden)).square().mean()


class Words(nn.Module):
    """A table of many words, which is the head as well."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x + self.down(torch.relu(self.up(x)))
        scores = x @ self.table.weight.t()
        return nn.functional.cross_entropy(scores.flatten(0, 1), ids.flatten())


def planned(
    model: nn.Module, *args: Tensor, mesh: Mesh, memory: str | None = None
) -> Plan:
    """Return the plan of a model for NVLink's ranks; nothing is pinned."""
    options = Options(hardware="h100-dgx", memory=memory, bucket=0)
    return make_plan(model, *args, mesh=mesh, options=options)


def weights(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return how matrices are stored and used."""
    return {
        name: (str(parameter.placements.storage), str(parameter.placements.use))
        for name, parameter in plan.parameters.items()
        if len(parameter.shape) == 2
    }


def collectives(plan: Plan) -> dict[str, int]:
    """Return how often each collective runs."""
    return {total.kind: total.count for total in plan.collectives}


MEGATRONS = {
    "up.weight": ("(S(0),)", "(S(0),)"),
    "down.weight": ("(S(1),)", "(S(1),)"),
}


def test_few_tokens_go_through_columns_then_rows() -> None:
    with torch.device("meta"):
        plan = planned(Block(4096), torch.zeros(8, 64, 4096), mesh=Mesh(tp=8))
    assert weights(plan) == MEGATRONS
    # After the rows, before the columns' inputs in the backward, and of the loss.
    assert collectives(plan) == {"all_reduce": 3}


def test_many_tokens_are_split_between_columns_and_rows() -> None:
    with torch.device("meta"):
        plan = planned(Block(4096), torch.zeros(4, 1024, 4096), mesh=Mesh(tp=8))
    assert weights(plan) == MEGATRONS
    found = collectives(plan)
    assert (found["reduce_scatter"], found["all_gather"]) == (1, 1)


def test_many_samples_of_a_small_model_are_data_parallel() -> None:
    with torch.device("meta"):
        plan = planned(Block(1024), torch.zeros(64, 512, 1024), mesh=Mesh(dp=8))
    # Whether a rank updates all of a weight or its piece is a matter of a per cent.
    assert {use for _, use in weights(plan).values()} == {"(B,)"}
    assert plan.nodes["input:x"].signature.results == (at("S(0)"),)
    assert set(collectives(plan)) <= {"all_reduce", "reduce_scatter", "all_gather"}
    pins = {name: "(B) use=(B)" for name in plan.parameters}
    options = Options(hardware="h100-dgx", pins=pins | {"input:x": "S(0)"}, bucket=0)
    with torch.device("meta"):
        model, x = Block(1024), torch.zeros(64, 512, 1024)
        pinned = make_plan(model, x, mesh=Mesh(dp=8), options=options)
    assert plan.predicted.seconds <= pinned.predicted.seconds * (1 + 1e-9)


def test_what_does_not_fit_is_stored_in_pieces_and_gathered() -> None:
    with torch.device("meta"):
        model, x = Block(1024), torch.zeros(64, 512, 1024)
    plan = planned(model, x, mesh=Mesh(dp=8), memory="285MiB")
    assert set(weights(plan).values()) == {("(S(0),)", "(B,)")}
    assert plan.nodes["input:x"].signature.results == (at("S(0)"),)
    found = collectives(plan)
    assert found["all_gather"] >= found["reduce_scatter"] == 2


@pytest.mark.slow
def test_activations_that_do_not_fit_whole_are_split_between_the_products() -> None:
    """By tokens: which samples or which of each, takes equally long."""
    with torch.device("meta"):
        model, x = Block(2048), torch.zeros(16, 512, 2048)
    plan = planned(model, x, mesh=Mesh(tp=8), memory="280MiB")
    assert weights(plan) == MEGATRONS
    found = collectives(plan)
    assert (found["reduce_scatter"], found["all_gather"]) == (2, 2)
    residual = next(n for key, n in plan.nodes.items() if key.startswith("add.Tensor/"))
    assert residual.signature.results[0] in (at("S(0)"), at("S(1)"))


def test_a_large_vocabulary_is_split() -> None:
    with torch.device("meta"):
        ids = torch.zeros(64, 32, dtype=torch.long)
        plan = planned(Words(131072, 512), ids, mesh=Mesh(tp=8))
    assert weights(plan) == {"table.weight": ("(S(0),)", "(S(0),)"), **MEGATRONS}


@pytest.mark.slow
def test_resnet_50_is_data_parallel() -> None:
    """Of its real shapes: what is brought together are statistics and gradients."""
    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
        images = torch.empty(512, 3, 224, 224)
        labels = torch.empty(512, dtype=torch.long)
    options = Options(hardware="a100-80gb-selene")
    plan = make_plan(
        model, mesh=Mesh(dp=8), options=options, pixel_values=images, labels=labels
    )
    whole = [n for n in plan.nodes.values() if n.op == "aten.convolution.default"]
    assert len(whole) == 53
    assert {str(node.signature.results[0]) for node in whole} == {"(S(0),)"}
    kinds = {total.kind for total in plan.collectives}
    assert kinds <= {"all_reduce", "reduce_scatter", "all_gather"}
    pins = {name: "B" for name, _ in model.named_parameters()}
    pinned = make_plan(
        model,
        mesh=Mesh(dp=8),
        options=replace(options, pins={**pins, "input:pixel_values": "S(0)"}),
        pixel_values=images,
        labels=labels,
    )
    assert plan.predicted.seconds <= pinned.predicted.seconds * (1 + 1e-9)
