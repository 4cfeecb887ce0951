"""How a parameter comes from its optimizer and its gradient goes there: checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
from small_plan import UP, at, small_plan

from partita.compiler.errors import BadPlan
from partita.compiler.plan.document import Boxing, LoweringStep, Parameter
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import storage_key

COLUMN, BOTH = at("(B, S(1))"), at("(S(0), S(1))")
KEY = f"{UP}~optimizer -> (B, S(1))"
NAME = "up.weight"


def zero1() -> Plan:
    """Return the small plan with a parameter that dp updates in pieces."""
    plan = small_plan()
    gather = LoweringStep("all_gather", "dp", COLUMN, 64, 64, 4e-6)
    entering = Boxing(KEY, UP, BOTH, COLUMN, (gather,), (UP,))
    last = plan.boxings[-1]
    reduced = (*last.lowering, LoweringStep("slice", "dp", BOTH))
    boxings = (
        entering,
        *plan.boxings[:-1],
        replace(last, target=BOTH, lowering=reduced),
    )
    outputs = [
        replace(output, placement=BOTH) if output.name == NAME else output
        for output in plan.outputs
    ]
    parameter = held(plan.parameters[NAME], optimizer=BOTH)
    parameters = {**plan.parameters, NAME: parameter}
    return replace(plan, parameters=parameters, boxings=boxings, outputs=tuple(outputs))


def held(parameter: Parameter, **placements: Any) -> Parameter:
    return replace(parameter, placements=replace(parameter.placements, **placements))


def refused(plan: Plan) -> str:
    with pytest.raises(BadPlan) as caught:
        plan.validate()
    return str(caught.value)


def test_a_parameter_updated_in_pieces_is_right() -> None:
    plan = zero1()
    plan.validate()
    assert Plan.from_dict(plan.to_dict()) == plan
    assert storage_key(UP, COLUMN) == KEY
    assert [boxing.enters for boxing in plan.boxings] == [True] + [False] * 5


def test_it_has_to_come_from_its_optimizer() -> None:
    plan = zero1()
    entering, *rest = plan.boxings
    assert refused(replace(plan, boxings=tuple(rest))) == (
        f"plan: boxings: found no {KEY!r}, which brings {NAME} from where the "
        "optimizer has it, (S(0), S(1))"
    )
    other = replace(entering, key="other")
    assert refused(replace(plan, boxings=(other, *rest))) == (
        "plan: boxings: 'other' goes from (S(0), S(1)) to (B, S(1)), wanted "
        f"{KEY!r} from (S(0), S(1)) to (B, S(1))"
    )
    alike = small_plan()
    extra = replace(alike, boxings=(entering, *alike.boxings))
    assert refused(extra) == (
        f"plan: boxings: {KEY!r} is its own user; want that of a parameter which the "
        "optimizer has in another placement"
    )


def test_its_gradient_goes_there_by_its_own_placement() -> None:
    plan = zero1()
    wrong = held(plan.parameters[NAME], gradient=at("(S(1), S(1))"))
    parameters = {**plan.parameters, NAME: wrong}
    assert refused(replace(plan, parameters=parameters)) == (
        f"plan: parameters.{NAME}.placements.gradient: found (S(1), S(1)), but it goes "
        "from (P(sum), S(1)) to (S(0), S(1)) another way"
    )
    zero2 = {**plan.parameters, NAME: held(plan.parameters[NAME], gradient=BOTH)}
    replace(plan, parameters=zero2).validate()


def test_its_gradient_leaves_as_the_optimizer_has_it() -> None:
    plan = small_plan()
    moved = held(plan.parameters[NAME], optimizer=BOTH, storage=COLUMN)
    entering = zero1().boxings[0]
    wrong = replace(
        plan,
        parameters={**plan.parameters, NAME: moved},
        boxings=(entering, *plan.boxings),
    )
    assert refused(wrong) == (
        "plan: outputs[2].placement: found (B, S(1)), wanted (S(0), S(1)), as the "
        f"optimizer has {NAME}"
    )


def test_graph_table_and_explanation_show_it() -> None:
    plan = zero1()
    graph = plan.graph()
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.nodes[KEY]["kind"] == "optimizer"
    assert graph.nodes[KEY]["placement"] == "(S(0), S(1))"
    ((_, user, edge),) = graph.out_edges(KEY, data=True)
    assert (user, edge["by"], edge["bytes"]) == (UP, "all_gather dp", 64)
    assert (edge["placement"], edge["wanted"]) == ("(S(0), S(1))", "(B, S(1))")
    text = plan.explain(NAME)
    assert "optimizer  (S(0), S(1))" in text
    assert "from optimizer to storage: all_gather dp, 64 B, 4 us" in text
    (row,) = [line for line in str(plan).splitlines() if line.startswith(NAME)]
    assert row.split()[-2:] == ["(S(0),", "S(1))"]
