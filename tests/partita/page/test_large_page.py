"""A plan of ten thousand nodes: it opens at once, unfolds, searches."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.partita.conftest import SAVED

from partita.compiler.plan.plan import Plan
from partita.page.page import render_page

Opened = Callable[[str], Page]

MOST_S = 3.0
MOST_BYTES = 3_000_000


@pytest.fixture(
    scope="module",
    params=[pytest.param(10_000, marks=pytest.mark.slow), 2_000],
)
def large(request: pytest.FixtureRequest) -> Plan:
    """Return the plan of many copies of the small one, which share the inputs."""
    small = Plan.load(SAVED).to_dict()
    data = deepcopy(small)
    own = [key for key in data["order"] if not shared(data["nodes"][key])]
    for number in range(-(-request.param // len(own))):
        copy(data, deepcopy(small), own, f"layers.{number}")
    data["stages"][0]["nodes"] = data["order"]
    plan = Plan.from_dict(data)
    assert len(plan.nodes) >= request.param
    return plan


@pytest.fixture(scope="module")
def html(large: Plan) -> str:
    """Return the page."""
    return render_page(large)


def shared(node: dict[str, Any]) -> bool:
    """Whether a node is an input of all copies."""
    return node["role"] is not None and node["role"]["kind"] != "parameter"


def copy(data: dict[str, Any], small: dict[str, Any], own: list[str], at: str) -> None:
    """Add one more copy, its nodes in a module of its own."""
    names = {key: f"{at}.{key}" for key in own}
    names |= {f"{key}#1": f"{name}#1" for key, name in names.items()}
    names |= {
        f"gradient:{name}": f"gradient:{at}.{name}" for name in small["parameters"]
    }

    def new(name: str) -> str:
        return names.get(name, name)

    for key in own:
        node = small["nodes"][key]
        node["operands"] = [*map(new, node["operands"])]
        node["module"] = f"{at}.{node['module']}".rstrip(".")
        if node["role"] is not None:
            node["role"]["name"] = f"{at}.{node['role']['name']}"
        data["nodes"][new(key)] = node
        data["order"].append(new(key))
    for boxing in small["boxings"]:
        if boxing["consumers"] == ["loss:loss"]:
            continue
        boxing["producer"] = new(boxing["producer"])
        boxing["consumers"] = [*map(new, boxing["consumers"])]
        boxing["key"] = f"{boxing['producer']}#{boxing['index']} -> {boxing['to']}"
        data["boxings"].append(boxing)
    for name, parameter in small["parameters"].items():
        data["parameters"][f"{at}.{name}"] = parameter
    for output in small["outputs"]:
        if output["kind"] == "gradient":
            output["name"] = f"{at}.{output['name']}"
            output["value"] = new(output["value"])
            data["outputs"].append(output)


def test_it_is_one_file_of_moderate_size(html: str) -> None:
    assert len(html) < MOST_BYTES


def test_it_opens_in_no_time(opened: Opened, html: str) -> None:
    page = opened(html)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    # What the page's process computed: what else runs on the machine does not count.
    (seconds,) = (m["value"] for m in metrics if m["name"] == "ProcessTime")
    assert 0.0 < seconds < MOST_S


def test_it_unfolds_and_searches(opened: Opened, html: str) -> None:
    page = opened(html)
    page.fill("#search", "layers.150.down/mm/0 forward")
    page.keyboard.press("Enter")
    chosen = page.locator("g.box.selected")
    expect(chosen).to_have_count(1)
    expect(page.locator("#details")).to_contain_text("layers.150.down/mm/0")
    assert page.locator("g.box").count() < 300
