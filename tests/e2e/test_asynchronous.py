"""A pipeline that never drains trains on weights of the age that PipeDream states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.pipelines import PIPELINES
from torch import Tensor

import partita as pt
from partita.compiler.errors import BadOptions
from partita.runtime.launch import launch

NUM_BATCHES = 8

Trained = tuple[Tensor, int, dict[str, Tensor], list[str]]
"""Losses, versions held, the rank's own parameters, whole, and what it did."""


def doubles(name: str) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    model, args, _ = PIPELINES[name]()
    return model.double(), tuple(
        x.double() if x.is_floating_point() else x for x in args
    )


def batches(like: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randn(x.shape, generator=generator).double() for x in like)
        for _ in range(NUM_BATCHES)
    ]


def train_rank(name: str, document: dict[str, Any], optimizer_name: str) -> Trained:
    model, args = doubles(name)
    program = pt.compile(model, pt.Plan.from_dict(document))
    make = getattr(torch.optim, optimizer_name)
    optimizer = make(program.parameters(), lr=0.05)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    given = [{"x": x, "target": target} for x, target in batches(args)]
    streamed = program.train_asynchronously(given, update)
    state = {k: v.full_tensor() for k, v in program.state_dict().items()}  # type: ignore[attr-defined]
    actions = [str(action) for action in program.actions]
    return streamed.losses, streamed.most_versions, state, actions


def emulated(
    name: str, stages: list[set[str]], parts: int, optimizer_name: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Do the same in one process: each stage at the version that it would have."""
    model, args = doubles(name)
    parameters = dict(model.named_parameters())
    make = getattr(torch.optim, optimizer_name)
    optimizers = [make([parameters[n] for n in own], lr=0.05) for own in stages if own]
    versions = [{n: p.detach().clone() for n, p in parameters.items()}]
    losses: list[Tensor] = []
    for number, batch in enumerate(batches(args)):
        grads = {n: torch.zeros_like(p) for n, p in parameters.items()}
        total = torch.zeros((), dtype=torch.float64)
        for part in range(parts):
            rows = [x.chunk(parts)[part] for x in batch]
            seen: dict[str, Tensor] = {}
            for stage, own in enumerate(stages):
                done = number * parts + part - (len(stages) - stage) + 1
                version = versions[max(done, 0) // parts]
                seen |= {n: version[n].clone().requires_grad_() for n in own}
            loss = torch.func.functional_call(model, seen, tuple(rows)) / parts
            found = torch.autograd.grad(loss, list(seen.values()))
            for n, g in zip(seen, found, strict=True):
                grads[n] += g
            total += loss.detach()
        losses.append(total)
        for n, p in parameters.items():
            p.grad = grads[n]
        for optimizer in optimizers:
            optimizer.step()
        versions.append({n: p.detach().clone() for n, p in parameters.items()})
    return torch.stack(losses), versions[-1]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "mesh", "parts", "optimizer", "schedule"),
    [
        ("chain", "pp=2", 2, "AdamW", "1f1b"),
        ("chain", "pp=2", 1, "SGD", "zero-bubble"),
        pytest.param("chain", "pp=4", 1, "SGD", "1f1b", marks=pytest.mark.slow),
        pytest.param("chain", "pp=4", 2, "AdamW", "1f1b", marks=pytest.mark.slow),
        pytest.param(
            "diamond", "pp=2,dp=2", 2, "AdamW", "zero-bubble", marks=pytest.mark.slow
        ),
        pytest.param(
            "hourglass", "pp=2,tp=2", 4, "SGD", "1f1b", marks=pytest.mark.slow
        ),
    ],
)
def test_each_backward_uses_the_weights_of_its_forward(
    name: str, mesh: str, parts: int, optimizer: str, schedule: str
) -> None:
    model, args = doubles(name)
    options = pt.Options(microbatches=parts, schedule=schedule)
    plan = pt.plan(model, *args, mesh=mesh, options=options)
    given = (name, plan.to_dict(), optimizer)
    ranks = launch(train_rank, plan.mesh.size, given, timeout_s=120)

    num_stages, size = len(plan.stages), plan.stages[0].mesh.size
    stages = [set(ranks[stage * size][2]) for stage in range(num_stages)]
    losses, parameters = emulated(name, stages, parts, optimizer)
    count = NUM_BATCHES * parts
    for rank, (found, versions, state, actions) in enumerate(ranks):
        stage = rank // size
        torch.testing.assert_close(found, losses, rtol=1e-12, atol=1e-12)
        for key, value in state.items():
            torch.testing.assert_close(value, parameters[key], rtol=1e-9, atol=1e-12)
        assert versions <= num_stages - stage
        assert parts > 1 or versions == num_stages - stage
        computed = [a for a in actions if "F" in a.replace("_F", "")]
        assert computed == [f"{stage}F{n}" for n in range(count)]
    works = ("F", "I", "W") if schedule == "zero-bubble" else ("F", "B")
    last = [a for a in ranks[-1][3] if a[1] in works]
    assert last[:6] == [f"{num_stages - 1}{w}{n}" for n in range(3) for w in works][:6]


def together(document: dict[str, Any], what: str) -> str:
    model, (x, target) = doubles("chain")
    program = pt.compile(model, pt.Plan.from_dict(document))
    scaler = pt.LossScaler(program)
    optimizer = torch.optim.SGD(program.parameters(), lr=0.05)
    asked: dict[str, Callable[[], object]] = {
        "clip": lambda: program.clip_grad_norm_(1.0),
        "scale": lambda: scaler.step(optimizer),
    }
    refusal = ""

    def update() -> None:
        nonlocal refusal
        try:
            asked[what]()
        except BadOptions as error:
            refusal = str(error)

    program.train_asynchronously([{"x": x, "target": target}], update)
    return refusal


@pytest.mark.dist
@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("clip", "the norm of all gradients"),
        ("scale", "whether all gradients are finite"),
    ],
)
def test_what_is_of_all_ranks_is_refused_in_an_update(what: str, wanted: str) -> None:
    model, args = doubles("chain")
    options = pt.Options(microbatches=1, schedule="1f1b")
    plan = pt.plan(model, *args, mesh="pp=2", options=options)
    for text in launch(together, 2, (plan.to_dict(), what), timeout_s=60):
        assert text.startswith(f"{wanted} is asked of all ranks, which train_async")


def test_what_has_no_versions_is_refused() -> None:
    model, args = doubles("chain")
    program = pt.compile(model, pt.plan(model, *args, mesh="dp=1"))
    with pytest.raises(BadOptions, match=r"no pipeline that trains; want .* axis pp"):
        program.train_asynchronously([], lambda: None)


def refused(name: str, document: dict[str, Any]) -> str:
    model, (ids, labels), _ = PIPELINES[name]()
    program = pt.compile(model, pt.Plan.from_dict(document))
    try:
        program.train_asynchronously([{"ids": ids, "labels": labels}], lambda: None)
    except BadOptions as error:
        return str(error)
    return "not refused"


@pytest.mark.dist
@pytest.mark.slow
def test_a_parameter_of_two_stages_is_refused() -> None:
    model, args, kwargs = PIPELINES["tied"]()
    options = pt.Options(microbatches=2, schedule="1f1b")
    plan = pt.plan(model, *args, mesh="pp=2", options=options, **kwargs)
    for text in launch(refused, 2, ("tied", plan.to_dict()), timeout_s=60):
        assert "stages 0 and 1 both use" in text
