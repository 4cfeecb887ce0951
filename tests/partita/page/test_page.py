"""The page as text: whole, closed, and the same whatever the plan names."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from partita.compiler.plan.document import ModelId
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import printable
from partita.page.page import SHARED, pack_json, render_diff_page, render_page

Render = Callable[[Plan], str]

SCRIPTS = (*SHARED, "view.js", "compare.js", "diff.js")
MOST_LINES = 400

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)><!--{{plan}}\u2028"
)


class Page(HTMLParser):
    """Collects elements, attributes that could load something, and script texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.policy = ""
        self.title = ""
        self.data: dict[str, str] = {}
        self._open = ""
        self._id = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        known = dict(attrs)
        self.loads += [(k, v) for k, v in attrs if k in ("src", "href", "action")]
        self.loads += [(k, v) for k, v in attrs if k.startswith("on")]
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""
        self._open, self._id = tag, known.get("id") or ""

    def handle_data(self, data: str) -> None:
        if self._open == "title":
            self.title += data
        if self._open == "script" and self._id:
            self.data[self._id] = self.data.get(self._id, "") + data
        elif data.strip():
            self.texts[self._open] = self.texts.get(self._open, "") + data


def renamed(plan: Plan, name: str) -> Plan:
    """Return the plan with a hostile name wherever a name is free."""
    boxings = tuple(replace(boxing, why=name) for boxing in plan.boxings)
    nodes = {key: replace(n, source=name) for key, n in plan.nodes.items()}
    model = ModelId(name, name)
    return replace(plan, model=model, boxings=boxings, nodes=nodes)


def unpacked(page: Page, name: str) -> Any:
    """Return the data that a page holds under a name."""
    return json.loads(gzip.decompress(base64.b64decode(page.data[name])))


def both(plan: Plan) -> str:
    """Return the page of a plan beside itself."""
    return render_diff_page(plan, plan)


@pytest.fixture(params=[render_page, both], ids=["one", "two"])
def render(request: pytest.FixtureRequest) -> Render:
    """Return what makes each kind of page."""
    return request.param


def test_page_holds_the_whole_plan(plan: Plan) -> None:
    page = Page(render_page(plan))
    assert Plan.from_dict(unpacked(page, "plan")["plan"]) == plan
    assert page.title.startswith("Plan of model.TwoLayers on dp=2,tp=2")


def test_page_of_two_holds_both(plan: Plan) -> None:
    other = replace(plan, model=ModelId("model.Other", "5f0d"))
    page = Page(render_diff_page(plan, other))
    for name, wanted in (("a", plan), ("b", other)):
        assert Plan.from_dict(unpacked(page, name)["plan"]) == wanted
    assert page.title.startswith("model.TwoLayers on dp=2,tp=2 beside model.Other on")


def test_page_is_the_same_each_time(plan: Plan, render: Render) -> None:
    assert render(plan) == render(plan)


def test_page_loads_nothing(plan: Plan, render: Render) -> None:
    text = render(plan)
    page = Page(text)
    assert page.loads == []
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    for word in (
        "http:",
        "https:",
        "url(",
        "@import",
        "fetch(",
        "XMLHttp",
        "WebSocket",
        "sourceMappingURL",
    ):
        assert word not in text, word


def test_policy_lets_only_the_page_s_own_script_run(plan: Plan, render: Render) -> None:
    page = Page(render(plan))
    digest = hashlib.sha256(page.texts["script"].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in page.policy
    assert page.policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in page.policy


def test_hostile_names_change_no_markup(plan: Plan, render: Render) -> None:
    tame, hostile = Page(render(plan)), Page(render(renamed(plan, HOSTILE)))
    assert hostile.tags == tame.tags
    assert hostile.loads == []
    name = "plan" if "plan" in hostile.data else "a"
    assert unpacked(hostile, name)["plan"]["model"]["class"] == HOSTILE
    assert printable(HOSTILE) in hostile.title


def test_a_name_that_no_text_can_hold_is_spelled_out(
    plan: Plan, render: Render
) -> None:
    page = render(renamed(plan, "\ud800"))
    page.encode()
    assert "\\ud800" in Page(page).title


def test_the_library_s_licence_stands_in_the_page(plan: Plan, render: Render) -> None:
    assert "Copyright (c) 2012-2014 Chris Pettitt" in render(plan)
    assert "Permission is hereby granted" in render(plan)


def scripts() -> dict[str, str]:
    """Return every script of the page, by name."""
    folder = files("partita.page").joinpath("script")
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


def test_scripts_are_all_used_and_short() -> None:
    assert set(scripts()) == set(SCRIPTS)
    long = {name for name, text in scripts().items() if text.count("\n") > MOST_LINES}
    assert long == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_make_text_nodes_only(name: str) -> None:
    text = scripts()[name]
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "new Function",
        "</script",
        'setAttribute("style',
        'setAttribute("on',
    ):
        assert way not in text, way
    assert text.isascii()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_read_only_what_the_document_has(name: str, plan: Plan) -> None:
    read = set(re.findall(r"\bplan\.([a-z_]+)", scripts()[name]))
    assert read - set(plan.to_dict()) == set()


@pytest.mark.parametrize("text", ["a<b>&c", "\u2028", "\ud800", ""])
def test_packed_json_reads_back(text: str) -> None:
    packed = pack_json({"key": text})
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == {"key": text}
    assert packed.isascii()
    assert not set("<>&") & set(packed)
