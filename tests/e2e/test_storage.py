"""Optimizer states in pieces, gathers and activations made again: on real ranks.

Every plan trains as one process does, two batches a step of AdamW, dropout on, and
sends what it says: parameters come from their optimizers once a step of AdamW.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.e2e.planned_collectives import Counted, counted, planned
from tests.models.dropout import with_dropout
from tests.models.storage_pins import storage_pins
from tests.models.turned import MACHINE
from tests.models.zoo import Built

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.capture.eager_draws import LayoutFreeDraws
from partita.compiler.capture.random_numbers import seed_value
from partita.compiler.ir.layout import shard_shape
from partita.passes.promote_precision import promote_arguments
from partita.runtime.launch import launch
from partita.runtime.measure import count_collectives
from partita.verifying.precision import double_precision, promoting_floats

pytestmark = pytest.mark.dist

BESIDE = MACHINE(bytes_per_s=3e8, overlap=0.9)
NUM_UPDATES, NUM_COUNTED = 3, 2
MAX_NORM, SEED = 0.3, 3
BLOCKS = {"gpt2": "transformer.h.*", "llama": "model.layers.*", "bert": "*.layer.*"}


def _built(name: str) -> Built:
    model, args, kwargs = with_dropout(name)
    return model.double(), args, kwargs


@contextmanager
def _all_double() -> Generator[None, None, None]:
    """Promote the casts to float that models make on their own."""
    with double_precision(), promoting_floats(promote_arguments):
        yield


def _batches(kwargs: dict[str, Any], update: int) -> list[dict[str, Any]]:
    """Return the two batches of an update: the example's rows, moved on."""
    moves = 2 * update, 2 * update + 1
    return [{k: v.roll(move, dims=-1) for k, v in kwargs.items()} for move in moves]


def train_on_rank(name: str, document: Any) -> dict[str, Any]:
    """Train on this rank; return what one process can be compared with."""
    model, _, kwargs = _built(name)
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    program.seed = SEED
    optimizer = torch.optim.AdamW(program.parameters(), lr=0.01)
    losses: list[float] = []
    norms: list[float] = []
    sent: list[Counted] = []
    with _all_double():
        for update in range(NUM_UPDATES):
            for batch in _batches(kwargs, update):
                if update >= NUM_COUNTED:
                    losses.append(float(program.step(**batch)))
                    continue
                with count_collectives() as found:
                    losses.append(float(program.step(**batch)))
                sent.append(counted(found))
            norms.append(float(program.clip_grad_norm_(MAX_NORM)))
            optimizer.step()
            optimizer.zero_grad()
    state = program.optimizer_state_dict(optimizer)["state"]
    moments = {n: v["exp_avg_sq"].full_tensor() for n, v in state.items()}
    values = {n: v.full_tensor() for n, v in program.state_dict().items()}  # type: ignore[attr-defined]
    held = sum(p.numel() for p in program.parameters())
    return {
        "losses": losses, "norms": norms, "sent": sent, "values": values,
        "moments": moments, "held": held,
    }  # fmt: skip


def _train_alone(built: Built, draws: tuple[str, ...]) -> dict[str, Any]:
    model, _, kwargs = built
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses: list[float] = []
    norms: list[float] = []
    with _all_double():
        for update in range(NUM_UPDATES):
            for index, batch in enumerate(_batches(kwargs, update)):
                seed = torch.tensor(seed_value(SEED, 2 * update + index))
                with LayoutFreeDraws(seed, draws):
                    loss = model(**batch).loss
                loss.backward()
                losses.append(float(loss.detach()))
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            norms.append(float(norm))
            optimizer.step()
            optimizer.zero_grad()
    names = [name for name, _ in model.named_parameters()]
    state = optimizer.state_dict()["state"]
    moments = {names[i]: values["exp_avg_sq"] for i, values in state.items()}
    values = model.state_dict()
    return {"losses": losses, "norms": norms, "values": values, "moments": moments}


def _plan(built: Built, name: str, kind: str, mesh: pt.Mesh) -> pt.Plan:
    """Return a plan of a way to hold parameters, ``and recompute``, ``and beside``."""
    model, args, kwargs = built
    way, *more = kind.split(" and ")
    again = [BLOCKS[name]] if "recompute" in more else []
    is_beside = "beside" in more
    options = pt.Options(
        pins=storage_pins(built, way, mesh.ndim),
        hardware=BESIDE if is_beside else "cpu-gloo-free",
        recompute=again + ["parameter:*"] * (way == "zero3"),
        time_limit=30,
    )
    return pt.plan(model, *args, mesh=mesh, options=options, **kwargs)


def _chosen(built: Built, mesh: pt.Mesh) -> pt.Plan:
    """Return the plan that the search takes of itself where memory is short."""
    model, args, kwargs = built
    split, whole = (f"({', '.join([text] * mesh.ndim)},)" for text in ("S(0)", "B"))
    batch = dict.fromkeys(kwargs, split)
    options = pt.Options(
        pins=batch | {"parameter:*": whole},
        hardware=machine(
            flops_per_s=1e11, memory_bytes_per_s=1e10, bytes_per_s=2e9, launch_s=1e-7
        ),
        microbatches=2,
        time_limit=20,
    )
    free = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    options = replace(
        options,
        pins=batch | {"parameter:*": f"use={whole}"},
        memory=int(0.85 * free.predicted.bytes),
    )
    return pt.plan(model, *args, mesh=mesh, options=options, **kwargs)


def _num_updated(plan: pt.Plan, rank: int) -> int:
    """Return how many elements of the parameters a rank updates."""
    mesh = plan.mesh
    return sum(
        prod(shard_shape(p.shape, held, mesh, mesh.coordinates(rank)))
        for p in plan.parameters.values()
        if (held := p.placements.optimizer) is not None
    )


def _check(name: str, kind: str, mesh: pt.Mesh, timeout_s: float) -> None:
    built = _built(name)
    plan = _plan(built, name, kind, mesh)
    assert bool(plan.recompute) == ("zero3" in kind or "recompute" in kind)
    assert bool(plan.late) is ("beside" in kind)
    assert bool(plan.ahead) is ("beside" in kind and "zero3" in kind)
    _check_trains(built, name, plan, timeout_s)


def _check_chosen(name: str, mesh: pt.Mesh, timeout_s: float) -> None:
    built = _built(name)
    plan = _chosen(built, mesh)
    ways = [parameter.placements for parameter in plan.parameters.values()]
    assert sum(own.optimizer != own.storage for own in ways) > len(ways) // 3
    _check_trains(built, name, plan, timeout_s)


def _check_trains(built: Built, name: str, plan: pt.Plan, timeout_s: float) -> None:
    mesh = plan.mesh
    draws = capture(built[0], built[1], built[2]).program.draws
    alone = _train_alone(built, draws)
    job = (name, plan.to_dict())
    results = launch(f"{__file__}:train_on_rank", mesh.size, job, timeout_s=timeout_s)
    for rank, result in enumerate(results):
        assert result["held"] == _num_updated(plan, rank)
        for key in ("losses", "norms"):
            assert result[key] == pytest.approx(alone[key], rel=1e-9), (key, rank)
        for key in ("values", "moments"):
            assert set(result[key]) == set(alone[key])
            for part, value in alone[key].items():
                found = result[key][part]
                torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-12)
        first = planned(plan, rank, is_double=True)
        second = planned(plan, rank, is_double=True, with_entering=False)
        assert result["sent"] == [first, second] * NUM_COUNTED


def test_two_ranks_train_as_one_process_does() -> None:
    _check("gpt2", "zero1 and recompute", pt.Mesh(dp=2), 110.0)


@pytest.mark.slow
def test_two_ranks_train_so_while_messages_pass() -> None:
    _check("gpt2", "zero3 and beside", pt.Mesh(dp=2), 110.0)


@pytest.mark.slow
def test_two_ranks_train_in_the_pieces_that_the_search_chose() -> None:
    _check_chosen("gpt2", pt.Mesh(dp=2), 110.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), [("llama", 2), ("gpt2", 4), ("llama", 4)])
def test_more_ranks_train_in_the_pieces_that_the_search_chose(
    name: str, ranks: int
) -> None:
    _check_chosen(name, pt.Mesh(dp=ranks), 240.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "mesh"),
    [
        ("llama", "zero3 and recompute", pt.Mesh(dp=2)),
        ("gpt2", "zero1", pt.Mesh(dp=3)),  # pieces of unequal size
        ("gpt2", "zero1", pt.Mesh(dp=4)),
        ("llama", "zero2", pt.Mesh(dp=4)),
        ("bert", "zero2 and recompute", pt.Mesh(dp=4)),
        ("gpt2", "zero3", pt.Mesh(dp=4)),
        ("llama", "zero3 and recompute and beside", pt.Mesh(dp=4)),
        ("bert", "zero2 and beside", pt.Mesh(dp=2, tp=2)),
        ("bert", "zero3 and recompute", pt.Mesh(dp=2, tp=2)),
        ("gpt2", "tensor parallel zero1", pt.Mesh(dp=2, tp=2)),
        ("llama", "tensor parallel zero1 and recompute", pt.Mesh(dp=2, tp=2)),
    ],
    ids=str,
)
def test_more_ranks_train_as_one_process_does(
    name: str, kind: str, mesh: pt.Mesh
) -> None:
    _check(name, kind, mesh, 800.0)
