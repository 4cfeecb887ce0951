"""Pipelines of many kinds train as one process does, on real ranks.

Models by meshes; of each the cut that the search chose, with every schedule and 4 and 8
microbatches, by AdamW in float64 and SGD in float32, and ten drawn at random, by AdamW.
Dropout is on, and every sequence counts another number of tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
from tests.e2e.trained import ADAMW, SGD, Trained, Training
from tests.models.cut import drawn, search_of
from tests.models.staged import STAGED
from tests.models.zoo import Built

import partita as pt
from partita import lowering, planning
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.torch_private import pytree
from partita.compiler.rules.rule import RuleSet
from partita.microbatched import in_microbatches
from partita.runtime.launch import launch

MESHES = ("pp=2", "pp=4", "pp=2,tp=2", "pp=2,dp=2", "pp=2,dp=1,tp=2")
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"schedule": "gpipe"},
    {"schedule": "1f1b"},
    {"schedule": "zero-bubble"},
    {"schedule": "frugal"},
    {"schedule": "interleaved", "stages_per_rank": 2},
)
COUNTS = (4, 8)
CUTS = 10


def built(name: str, training: Training) -> Built:
    """Return a model and eight samples."""
    model, args, kwargs = STAGED[name]()
    if next(_tensors((args, kwargs))).shape[0] == 4:
        args, kwargs = pytree.tree_map(_twice, (args, kwargs))
    labels = kwargs.get("labels")
    if labels is not None and labels.dim() == 2:
        for row, counted in enumerate(labels):
            counted[: 1 + row] = -100
    return training.built((model, args, kwargs))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _twice(leaf: Any) -> Any:
    """Return an input of twice the samples, of which no two are alike."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    again = leaf.roll(1, -1) if leaf.dim() > 1 else leaf.flip(0)
    return torch.cat([leaf, again])


@lru_cache(maxsize=2)
def alone(name: str, training: Training) -> Trained:
    """Return what one process trains."""
    model, args, kwargs = built(name, training)
    plan = pt.plan(model, *args, mesh="dp=1", **kwargs)
    return training.train(built(name, training), plan)


@lru_cache(maxsize=2)
def captured_once(name: str, training: Training) -> Captured:
    return capture(*built(name, training))


@lru_cache(maxsize=2 * len(COUNTS))
def microbatched_once(name: str, training: Training, count: int) -> Captured:
    return in_microbatches(captured_once(name, training), count, pt.default_rules)


@contextmanager
def capturing_once(name: str, training: Training) -> Generator[None]:
    """Plan and compile what was captured once: capture is most of what a plan takes."""

    def captured(*_: Any, **__: Any) -> Captured:
        return captured_once(name, training)

    def microbatched(_: Captured, count: int, __: RuleSet) -> Captured:
        return microbatched_once(name, training, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "capture", captured)
        patch.setattr(lowering, "capture_spec", captured)
        patch.setattr(lowering, "in_microbatches", microbatched)
        yield


def train_all(
    name: str, work: Sequence[tuple[Training, dict[str, Any]]]
) -> list[Trained]:
    trained: list[Trained] = []
    for training, document in work:
        with capturing_once(name, training):
            plan = pt.Plan.from_dict(document)
            trained.append(training.train(built(name, training), plan))
    return trained


def searched(name: str, mesh: str, training: Training) -> Iterator[pt.Plan]:
    model, args, kwargs = built(name, training)
    for schedule in SCHEDULES:
        for count in COUNTS:
            options = pt.Options(microbatches=count, time_limit=10.0, **schedule)
            with capturing_once(name, training):
                yield pt.plan(model, *args, mesh=mesh, options=options, **kwargs)


def cut_at_random(name: str, mesh: str, training: Training) -> Iterator[pt.Plan]:
    for count, schedule in zip(COUNTS, ("1f1b", "zero-bubble"), strict=True):
        captured = microbatched_once(name, training, count)
        search = search_of(captured, mesh, schedule=schedule)
        for seed in range(CUTS // len(COUNTS)):
            yield drawn(search, seed)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", STAGED)
def test_all_train_as_one_process(name: str, mesh: str) -> None:
    plans = [(t, plan) for t in (ADAMW, SGD) for plan in searched(name, mesh, t)]
    plans += [(ADAMW, plan) for plan in cut_at_random(name, mesh, ADAMW)]
    work = [(training, plan.to_dict()) for training, plan in plans]
    size = plans[0][1].mesh.size
    ranks = launch(train_all, size, (name, work), timeout_s=60 * len(work))
    wrong: list[str] = []
    for (training, plan), trained in zip(plans, zip(*ranks, strict=True), strict=True):
        try:
            training.check(plan, trained, alone(name, training))
        except AssertionError as error:
            wrong.append(f"{training.dtype}, {plan.stages}: {error}")
    assert not wrong, "\n".join(wrong)
