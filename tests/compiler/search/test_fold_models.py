"""Equal blocks decided once cost the same as decided one by one, on real models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tests.models import zoo

from partita.compiler.capture.capture import capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.fold import Fold
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.solver import solve
from partita.options import Options
from partita.planner import Planner

MODELS: dict[str, Callable[[int], zoo.Built]] = {
    "gpt2": zoo.gpt2,
    "llama": zoo.llama,
    "qwen3": zoo.qwen3,
    "bert": zoo.bert,
}


@cache
def posed(name: str, layers: int) -> Posed:
    model, args, kwargs = MODELS[name](layers)
    captured = capture(model, args, kwargs)
    return Planner(captured, name, Mesh(tp=2), Options()).posed


@pytest.mark.slow
@pytest.mark.parametrize("layers", [4, 8])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_folding_costs_nothing(name: str, layers: int) -> None:
    problem = posed(name, layers).problem
    fold = Fold.of(problem)
    assert fold.has_classes
    folded, whole = solve(problem, 120, fold=fold), solve(problem, 120)
    assert folded.status == whole.status == "optimal"
    assert folded.seconds == pytest.approx(whole.seconds, rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_within_a_limit_what_folds_is_bounded_by_what_does_not(name: str) -> None:
    whole = posed(name, 4)
    free = solve(whole.problem, 60)
    found = LimitedSearch(whole, free, "adamw", Clock.of(30))
    limit = int(0.8 * found.run(1 << 40).keeping.peak_bytes)
    folded = found.run(limit)
    apart = LimitedSearch(whole, free, "adamw", Clock.of(60))
    apart.fold = Fold.none(whole.problem)
    unfolded = apart.run(limit)
    assert folded.fits
    assert unfolded.fits
    assert unfolded.bound_s <= folded.seconds * (1 + 1e-9)
