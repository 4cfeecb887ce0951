"""A plan whose joined products contradict it is refused, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.models.projected import JOINED, planned

import partita as pt
from partita.compiler.errors import BadPlan

QK, GATE_UP = JOINED
ONE_OF = (
    "cannot be part of one product; want one of aten.mm.default, aten.addmm.default "
    "with a parameter, transposed, in the placement in which it is held and updated, "
    "whose result no other rank is sent"
)


def test_what_the_search_joins_holds_together() -> None:
    plan = planned()
    assert plan.joined == JOINED
    plan.validate()


@pytest.mark.parametrize(
    ("joined", "message"),
    [
        ([QK, ("nowhere", "q/addmm/0")], "joined[1]: found 'nowhere', wanted the key"),
        ([QK[:1]], "joined[0]: found 1 products, wanted 2 at least"),
        ([QK, QK], "joined[1]: 'q/addmm/0' is in joined[0] already"),
        ([QK[::-1]], "joined[0]: want its products in the order of the program"),
        ([("down/mm/0", "tanh/0")], f"joined[0]: 'tanh/0' {ONE_OF}"),
        (
            [("gate/mm/0", "down/mm/0")],
            "joined[0]: 'down/mm/0' is not like 'gate/mm/0'; want products of one "
            "tensor, in one part of the step",
        ),
    ],
)
def test_what_does_not_is_refused(joined: list[tuple[str, ...]], message: str) -> None:
    with pytest.raises(BadPlan) as caught:
        replace(planned(), joined=tuple(joined)).validate()
    assert message in str(caught.value)


def test_one_that_is_fused_is_refused() -> None:
    plan = replace(planned(), fusion=(("q/addmm/0", "tanh/0"),))
    with pytest.raises(BadPlan, match=r"'q/addmm/0' is in fusion\[0\] already"):
        plan.validate()


class UsedTwice(torch.nn.Module):
    """A parameter that is multiplied with beside two others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        x = torch.tanh(self.a(x)) * self.b(x)
        return (torch.tanh(self.a(x)) * self.c(x)).square().mean()


def test_a_parameter_beside_others_in_two_places_is_refused() -> None:
    options = pt.Options(hardware="h100-dgx", fuse=True)
    plan = pt.plan(
        UsedTwice(), torch.randn(16, 32), mesh=pt.Mesh(dp=1), options=options
    )
    products = [
        key
        for key in plan.order
        if plan.nodes[key].op == "aten.mm.default"
        and plan.nodes[key].phase == "forward"
    ]
    first, second = tuple(products[:2]), tuple(products[2:])
    for one in (first, second):
        replace(plan, joined=(one,)).validate()
    with pytest.raises(BadPlan) as caught:
        replace(plan, joined=(first, second)).validate()
    assert "joined[1]: parameter 'a.weight' lies beside others" in str(caught.value)
