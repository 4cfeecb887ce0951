"""A boxing is explained by its two ends, its price and what would remove it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_plan import signature, small_plan
from tests.models.zoo import ZOO, data_parallel_pins

from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.explain_boxing import removals
from partita.compiler.plan.plan import Plan
from partita.options import Options
from partita.planning import plan as make_plan

OF_DOWN = """\
down/mm/0 -> (S(0), B): boxing of f32[8, 4]
  made       as (S(0), P(sum)) by down/mm/0 (model.py:7 in down)
  wanted     as (S(0), B) by mean/0 (model.py:7 in the model itself)
  wanted     as (S(0), B) by max.dim/0 (model.py:7 in the model itself)
  takes      4 us, 64 B sent by a rank
  without    no alternative that the plan keeps does without it

step           placement  payload  sent  time
-------------  ---------  -------  ----  ----
all_reduce tp  (S(0), B)  64 B     64 B  4 us"""

KEY = "down/mm/0 -> (S(0), B)"


def with_alternatives(**others: tuple[str, str, float]) -> Plan:
    """Return the plan with one alternative per node; ``_`` in a key is a slash."""
    plan = small_plan()
    nodes = dict(plan.nodes)
    for name, (operands, results, seconds) in others.items():
        key = name.replace("_", "/").replace("max", "max.dim")
        other = Alternative(signature(operands, results), seconds)
        nodes[key] = replace(nodes[key], alternatives=(other,))
    return replace(plan, nodes=nodes)


def ways(plan: Plan) -> dict[str, float]:
    (boxing,) = (b for b in plan.boxings if b.key == KEY)
    return dict(removals(plan, boxing))


def test_boxing_is_explained_by_its_ends(plan: Plan) -> None:
    assert plan.explain(KEY) == OF_DOWN


def test_producer_may_make_it_as_it_is_wanted() -> None:
    made = with_alternatives(down_mm_0=("S(0), B | B, B", "S(0), B", 3e-6))
    assert ways(made) == {"down/mm/0 makes it as (S(0), B)": 3e-6}
    assert "  without    +3 us a step, if down/mm/0 makes it as (S(0), B)" in (
        made.explain(KEY).splitlines()
    )
    assert ways(with_alternatives(down_mm_0=("B, B | B, B", "B, B", 3e-6))) == {}


def test_consumers_may_all_take_it_as_it_is_made() -> None:
    mean = ("S(0), P", "P, P", 2e-6)
    assert ways(with_alternatives(mean_0=mean)) == {}
    both = with_alternatives(mean_0=mean, max_0=("S(0), P", "S(0), B | S(0), B", 5e-6))
    (text, seconds) = next(iter(ways(both).items()))
    assert text == "mean/0 and 1 more take it as (S(0), P(sum))"
    # Each change by itself would have left the boxing, of 4 us, to the other.
    assert seconds == pytest.approx(3e-6)


@pytest.mark.parametrize("bucket", [0, "25MiB"])
def test_a_sum_that_is_an_exchange_is_told_as_one(bucket: int | str) -> None:
    model, args, kwargs = built = ZOO["mlp"]()
    options = Options(pins=data_parallel_pins(built, 1), bucket=bucket)
    found = make_plan(model, *args, mesh=Mesh(dp=2), options=options, **kwargs)
    together = {key for keys in found.buckets for key in keys}
    assert bool(together) == bool(bucket)
    key = next(b.key for b in found.boxings if b.key in together or not bucket)
    text = found.explain(key)
    told = (
        "  sent       all_reduce dp as all_to_all"
        if bucket
        else "all_reduce dp as all_to_all"
    )
    assert any(line.startswith(told) for line in text.splitlines())
    assert "loopback_all_to_all_alpha_s" in text
