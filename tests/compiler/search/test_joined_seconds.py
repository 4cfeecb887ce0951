"""The price of products that are one: the product's, and that of reading its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.models.projected import HIDDEN, JOINED, WIDTH, planned

from partita.compiler.cost.compute import Product, op_seconds
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.plan import Plan
from partita.compiler.search.joined_seconds import ROW_S, JoinedSeconds
from partita.whole_plans.recount import recount, with_figures


def product_s(plan: Plan) -> float:
    """Return the price of one product of ``gate`` and ``up``."""
    import torch

    m, n, k = 16, 2 * HIDDEN, WIDTH
    figures = 2 * m * n * k, 4 * (m * n + n * k + m * k), torch.float32
    device = load_hardware(plan.hardware).device
    return op_seconds(*figures, device, "aten.mm.default", Product(m, n, k))


def test_on_a_gpu_it_is_that_of_the_product() -> None:
    plan = planned()
    assert JoinedSeconds(plan)(JOINED[1]) == pytest.approx(product_s(plan))


def test_on_a_cpu_each_kernel_that_reads_a_part_pays_for_its_rows() -> None:
    plan = replace(planned(hardware="cpu-gloo"), fusion=())
    readers = sum(
        ref.key in ("gate/mm/0", "up/mm/0")
        for key in plan.order
        for ref in plan.nodes[key].operands
    )
    wanted = product_s(plan) + ROW_S * 16 * readers
    assert readers > 2
    assert JoinedSeconds(plan)(JOINED[1]) == pytest.approx(wanted)


@pytest.mark.parametrize("mesh", ["dp=1", "tp=2"])
def test_the_step_is_predicted_with_it(mesh: str) -> None:
    plan = planned(mesh)
    assert not recount(plan).is_edited
    apart = with_figures(replace(plan, joined=()))
    seconds = JoinedSeconds(plan)
    saved_s = sum(
        sum(plan.nodes[key].seconds for key in keys) - seconds(keys)
        for keys in plan.joined
    )
    found_s = apart.predicted.seconds - plan.predicted.seconds
    assert saved_s > 0
    assert found_s == pytest.approx(saved_s, rel=1e-6)
