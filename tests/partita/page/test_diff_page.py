"""Two plans side by side in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from tests.models.zoo import gpt2

import partita as pt
from partita.compiler.plan.plan import Plan
from partita.page.page import render_diff_page

Opened = Callable[[str], Page]

ADDMM = "transformer.h.0.mlp.c_fc/addmm/0"


@pytest.fixture(scope="session")
def other_plan() -> Plan:
    """Return the plan of the same GPT-2 on four ranks that split the batch."""
    model, args, kwargs = gpt2()
    pins = {"input_ids": "(S(0),)", "labels": "(S(0),)"}
    options = pt.Options(pins=pins, hardware="h100-dgx")
    return pt.plan(model, *args, mesh=pt.Mesh(dp=4), options=options, **kwargs)


@pytest.fixture
def page(opened: Opened, gpt2_plan: Plan, other_plan: Plan) -> Page:
    """Return the page of both."""
    return opened(render_diff_page(gpt2_plan, other_plan))


def test_figures_of_both_stand_beside_each_other(page: Page) -> None:
    expect(page.locator("#what-A")).to_contain_text("A: dp=2,tp=2")
    expect(page.locator("#what-B")).to_contain_text("B: dp=4")
    expect(page.locator("#panel thead").first).to_contain_text("B - A")
    expect(page.locator("#panel .stacked")).to_have_count(4)
    for tab in page.get_by_role("tab").all():
        tab.click()
    expect(page.locator("#panel canvas")).to_have_count(2)


def test_what_is_selected_in_one_is_in_both(page: Page) -> None:
    page.fill("#search", ADDMM)
    page.keyboard.press("Enter")
    for name in "AB":
        chosen = page.locator(f"#graph-{name} g.box.selected")
        expect(chosen).to_have_count(1)
        expect(chosen).to_contain_text("\u0394 placed")
        expect(page.locator(f"#details-{name}")).to_contain_text(ADDMM)
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    for name in "AB":
        folded = page.locator(f'#graph-{name} g.box[aria-label^="module c_fc,"]')
        expect(folded).to_have_attribute("aria-expanded", "false")
        expect(folded).to_contain_text("\u0394")


def test_what_is_placed_otherwise_is_listed(
    page: Page, gpt2_plan: Plan, other_plan: Plan
) -> None:
    page.get_by_role("tab", name="Placed otherwise").click()
    panel = page.locator("#panel .panel:not([hidden])")
    expect(panel).to_contain_text("nodes with other placements")
    page.get_by_role("tab", name="In one only").click()
    only = set(gpt2_plan.nodes) - set(other_plan.nodes)
    expect(panel).to_contain_text(f"{len(only)} node")
    page.get_by_role("tab", name="Parameters").click()
    link = panel.get_by_role("button", name="transformer.h.1.mlp.c_fc.weight")
    link.click()
    expect(page.locator("#details-B")).to_contain_text("c_fc.weight")


def test_a_plan_beside_itself_differs_in_nothing(
    opened: Opened, gpt2_plan: Plan
) -> None:
    page = opened(render_diff_page(gpt2_plan, gpt2_plan))
    expect(page.locator(".mark")).to_have_count(0)
    page.get_by_role("tab", name="Placed otherwise").click()
    expect(page.locator("#panel")).to_contain_text("0 nodes with other placements")
    page.get_by_role("tab", name="Parameters").click()
    expect(page.locator("#panel")).to_contain_text("0 parameters placed otherwise")
