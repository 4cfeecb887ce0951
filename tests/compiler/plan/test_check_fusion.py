"""A plan whose fused groups contradict it is refused, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models.pipelines import BATCH, WIDTH, Chain, Diamond
from torch import nn

import partita as pt
from partita.compiler.errors import BadPlan


@cache
def planned(make: Callable[[], nn.Module] = Chain) -> pt.Plan:
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    options = pt.Options(microbatches=1)
    return pt.plan(make(), *batch, mesh="dp=1", options=options)


T = "tanh/0", "tanh/1", "tanh/2", "tanh/3"
NEEDS = (
    "one of its calls needs, by way of what is not in the group, what another has made"
)


@pytest.mark.parametrize(
    ("fusion", "message"),
    [
        ([("input:x", T[0])], "fusion[0]: found 'input:x', which enters; want calls"),
        ([T[:1], T[:1]], "fusion[1]: 'tanh/0' is in fusion[0] already"),
        ([(T[0], T[0])], "fusion[0]: 'tanh/0' is in fusion[0] already"),
        ([("sub.Tensor/0", "pow.Tensor_Scalar/0"), T[:2]], f"fusion[1]: {NEEDS}"),
        (
            [(T[0], "layers.2/addmm/0"), ("layers.1/addmm/0", T[2])],
            f"fusion[0]: {NEEDS}",
        ),
    ],
)
def test_what_cannot_be_a_kernel_is_refused(
    fusion: list[tuple[str, ...]], message: str
) -> None:
    with pytest.raises(BadPlan) as caught:
        replace(planned(), fusion=tuple(fusion)).validate()
    assert message in str(caught.value)


def test_what_can_be_one_holds_together() -> None:
    replace(planned(), fusion=(("sub.Tensor/0", "pow.Tensor_Scalar/0"),)).validate()


def test_groups_that_wait_for_each_other_are_refused() -> None:
    plan = planned(Diamond)
    left, right = (
        ("left.0/addmm/0", "left.1/gelu/0"),
        (
            "right.0/native_layer_norm/0",
            "right.1/addmm/0",
        ),
    )
    crossed = (left[0], right[1]), (left[1], right[0])
    replace(plan, fusion=crossed[:1]).validate()
    replace(plan, fusion=crossed[1:]).validate()
    with pytest.raises(BadPlan, match="fusion: found groups that wait for each other"):
        replace(plan, fusion=crossed).validate()
