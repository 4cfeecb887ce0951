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
from partita.one_mesh.planner import Planner
from partita.options import Options

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
def test_within_a_limit_folding_costs_nothing(name: str) -> None:
    whole = posed(name, 4)
    fold = Fold.of(whole.problem)
    free = solve(whole.problem, 60, fold=fold)
    probe = LimitedSearch(whole, free, "adamw", Clock.of(60))
    most, least = (probe.run(limit).keeping.peak_bytes for limit in (1 << 40, 1))
    limit = int(least + 0.7 * (most - least))
    folded = LimitedSearch(whole, free, "adamw", Clock.of(120)).run(limit)
    apart = LimitedSearch(whole, free, "adamw", Clock.of(120))
    apart.fold = Fold.none(whole.problem)
    unfolded = apart.run(limit)
    assert folded.fits
    assert unfolded.fits
    assert unfolded.bound_s <= folded.seconds * (1 + 1e-9)
    assert folded.seconds <= unfolded.seconds * (1 + 2e-6)
