"""Images split in space and scans split in time: equal to one process, rows lent."""

from __future__ import annotations

import copy
from collections import Counter
from functools import lru_cache
from typing import Any

import pytest
import torch
from tests.models.normed import Normed
from tests.models.searched import searched
from torch import nn

import partita as pt
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.program import op_name
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.one_mesh.planner import Planner
from partita.runtime.launch import launch
from partita.runtime.measure import count_collectives
from partita.verifying.verification import Verifier

NUM_STEPS = 2
RATE = 0.05


class Images(nn.Module):
    """Convolution, norm, pool, a strided and a grouped convolution, 1 x 1 filters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norm(self.first(x)).relu())
        x = nn.functional.avg_pool2d(self.third(self.second(x).relu()), 2)
        return self.last(x).square().mean()


class Uneven(nn.Module):
    """Rows and steps that two ranks do not share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(2, 3, (5, 3), padding=(2, 1))
        self.signal = nn.Conv1d(7, 4, 3, padding=2, dilation=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.image(x).tanh()
        signal = self.signal(x.sum(3).permute(0, 2, 1))
        return signal.square().mean()


class Volumes(nn.Module):
    """A 3-D convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).square().mean()


class Scans(nn.Module):
    """Sums, products and maxima so far, of a projected sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.proj(x)
        found = x.cumsum(1) + x.cummax(1).values + x.logcumsumexp(1)
        return found.square().mean()


def planned(model: nn.Module, x: torch.Tensor, mesh: str, pin: str) -> pt.Plan:
    options = pt.Options(pins={"x": pin})
    return pt.plan(model, x, mesh=mesh, options=options)


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def gathered(plan: pt.Plan) -> list[str]:
    """Return the boxings of four dims that end whole on an axis."""
    return [
        boxing.key
        for boxing in plan.boxings
        if any(step.kind == "all_gather" for step in boxing.lowering)
        and (type_ := plan.nodes[boxing.producer].types[boxing.index]) is not None
        and type_.ndim == 4
    ]


@lru_cache(maxsize=1)
def images() -> tuple[Captured, Verifier]:
    torch.manual_seed(0)
    model, x = Images(), image(2, 3, 32, 32)
    return capture(model, (x,), {}), Verifier.of(model, (x,), {})


def planned_images(mesh: str, pin: str) -> pt.Plan:
    captured, _ = images()
    options = pt.Options(pins={"x": pin})
    return searched(Planner(captured, "Images", pt.Mesh.parse(mesh), options))


@pytest.mark.parametrize(
    ("mesh", "pin"),
    [
        pytest.param("tp=2", "S(2)", marks=pytest.mark.slow),
        ("tp=4", "S(2)"),
        pytest.param("tp=2", "S(3)", marks=pytest.mark.slow),
        pytest.param("dp=2,tp=2", "(S(0), S(2))", marks=pytest.mark.slow),
        ("a=2,b=2", "(S(2), S(3))"),
    ],
)
def test_images_stay_split_and_lend_rows(mesh: str, pin: str) -> None:
    plan = planned_images(mesh, pin)

    assert gathered(plan) == []
    assert {plan.expanded[key].op for key in plan.expanded} >= {
        "aten.convolution.default",
        "aten.convolution_backward.default",
        "aten.max_pool2d_with_indices.default",
        "aten.max_pool2d_with_indices_backward.default",
    }
    captured, verifier = images()
    report = verifier.verify_captured(captured, plan)
    assert report.ok, str(report)


def test_neighbours_alone_lend_rows() -> None:
    plan = planned_images("tp=4", "S(2)")
    lent = [b for b in plan.boxings if "chunk_tails" in b.producer]

    assert {step.kind for boxing in lent for step in boxing.lowering} == {"all_to_all"}
    first = next(b for b in lent if b.producer.startswith("first/convolution/0~exp"))
    (step,) = first.lowering
    row_bytes = 2 * 3 * 32 * 4
    assert step.payload == 2 * row_bytes  # the first rank has what is outside too
    assert str(first.source) == "(S(0; 1|4),)"
    assert str(first.target) == "(S(0; 4|1),)"


def test_images_outside_training_are_split_too() -> None:
    torch.manual_seed(0)
    model, x = Images().eval(), image(2, 3, 32, 32)
    options = pt.Options(pins={"x": "S(2)"}, train=False)

    plan = pt.plan(model, x, mesh="tp=2", options=options)

    assert gathered(plan) == []
    (norm,) = [n for n in plan.nodes.values() if "batch_norm" in n.op]
    assert str(norm.signature.results[0]) == "(S(2),)"
    assert pt.verify(model, x, plan=plan).ok


@pytest.mark.parametrize(
    ("model", "shape", "mesh", "pin"),
    [
        (Uneven(), (2, 2, 7, 5), "tp=2", "S(2)"),
        (Uneven(), (2, 2, 7, 5), "tp=2", "S(3)"),
        (Volumes(), (1, 2, 6, 4, 4), "tp=3", "S(2)"),
        (Volumes(), (1, 2, 4, 4, 4), "a=2,b=2", "(S(3), S(4))"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_split_dims_compute_the_same(
    model: nn.Module, shape: tuple[int, ...], mesh: str, pin: str
) -> None:
    x = image(*shape)
    plan = planned(model, x, mesh, pin)

    assert any(n.op.startswith("partita.") for n in plan.nodes.values())
    report = pt.verify(model, x, plan=plan)
    assert report.ok, str(report)


def test_chunks_smaller_than_what_they_lend_are_not_offered() -> None:
    model, x = nn.Sequential(nn.Conv1d(2, 2, 7, padding=3)), image(1, 2, 8)
    options = pt.Options(pins={"input": "S(2)"}, loss=torch.sum)

    plan = pt.plan(model, x, mesh="tp=4", options=options)

    assert "0/convolution/0" not in plan.expanded
    assert pt.verify(model, x, plan=plan, loss=torch.sum).ok


def scanned(mesh: str, pin: str, size: int) -> tuple[pt.Plan, nn.Module, torch.Tensor]:
    """Return a plan that scans a sequence where it is."""
    torch.manual_seed(0)
    model, x = Scans(), image(2, size, 6)
    scans = ("cumsum/0", "cummax/0", "logcumsumexp/0")
    options = pt.Options(pins={"x": pin, **dict.fromkeys(scans, pin)})
    return pt.plan(model, x, mesh=mesh, options=options), model, x


@pytest.mark.parametrize(
    ("mesh", "pin", "size"),
    [
        ("tp=2", "S(1)", 7),
        ("tp=3", "S(1)", 8),
        ("a=2,b=2", "(S(0), S(1))", 8),
        ("a=2,b=2", "(S(1), S(1))", 8),
    ],
)
def test_scans_along_a_split_dim_compute_the_same(
    mesh: str, pin: str, size: int
) -> None:
    plan, model, x = scanned(mesh, pin, size)

    assert {"cumsum/0", "cummax/0", "logcumsumexp/0"} <= set(plan.expanded)
    report = pt.verify(model, x, plan=plan)
    assert report.ok, str(report)


def test_a_scan_sends_one_element_of_each_chunk() -> None:
    plan, _, _ = scanned("tp=4", "S(1)", 8)
    ends = [b for b in plan.boxings if "chunk_ends" in b.producer]

    assert len(ends) == 4  # of the maxima also where they stand
    for boxing in ends:
        type_ = plan.nodes[boxing.producer].types[boxing.index]
        assert type_ is not None
        assert type_.shape == (2, 4, 6)


def test_ranks_run_no_rows_of_others_but_those_lent() -> None:
    model, x = Volumes(), image(1, 2, 6, 4, 4)
    plan = planned(model, x, "tp=2", "S(2)")
    captured = capture_for(model, plan)

    programs = Lowered.of(captured, plan, default_rules).of_all()

    for program in programs:
        calls = [n for n in program.graph_module.graph.nodes if n.op == "call_function"]
        (wide,) = [
            node
            for node in calls
            if op_name(node) == "partita.widen.default" and node.args[-1][2] == 5
        ][:1]
        assert list(wide.args[-2]) == [1, 1, 1, 1, 1]


def train_on_rank(document: Any) -> dict[str, Any]:
    """Train on this rank; return losses, values and its collectives."""
    torch.manual_seed(0)
    model, x = Images().double(), image(2, 3, 32, 32).double()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.SGD(program.parameters(), lr=RATE)
    losses: list[float] = []
    with count_collectives() as found:
        losses.append(float(program.step(x)))
    for step in range(NUM_STEPS):
        if step:
            losses.append(float(program.step(x)))
        optimizer.step()
        optimizer.zero_grad()
    values = {n: v.full_tensor() for n, v in program.state_dict().items()}  # type: ignore[attr-defined]
    return {
        "losses": losses,
        "values": values,
        "counted": Counter(call.kind for call in found),
    }


@pytest.mark.dist
def test_two_ranks_train_on_split_images_as_one_process_does() -> None:
    torch.manual_seed(0)
    model, x = Images().double(), image(2, 3, 32, 32).double()
    plan = planned(model, x, "tp=2", "S(2)")
    alone, losses = copy.deepcopy(model), list[float]()
    optimizer = torch.optim.SGD(alone.parameters(), lr=RATE)
    for _ in range(NUM_STEPS):
        loss = alone(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))

    results = launch(f"{__file__}:train_on_rank", 2, (plan.to_dict(),), timeout_s=110.0)

    planned_calls: Counter[str] = Counter()
    for total in plan.collectives:
        planned_calls[str(total.kind)] += total.count
    assert planned_calls["all_to_all"] > 0
    for result in results:
        assert result["losses"] == pytest.approx(losses, rel=1e-9)
        assert result["counted"] == planned_calls
        for name, value in alone.state_dict().items():
            found = result["values"][name]
            torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=3"])
def test_a_batch_norm_of_a_split_batch_knows_all_of_it(
    dtype: torch.dtype, mesh: str
) -> None:
    model, x = Normed().to(dtype), torch.randn(5, 3, 8, 8, dtype=dtype)
    pin = "S(0)" if mesh == "tp=2" else "(S(0), S(0))"
    options = pt.Options(hardware="cpu-gloo-free", pins={"input:x": pin})
    plan = pt.plan(model, x, mesh=mesh, options=options)
    assert len(plan.expanded) >= 2
    assert pt.verify(model, x, plan=plan).ok
