import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from partita.compiler.plan.document import ModelId
from partita.compiler.plan.plan import Plan
from partita.page.page import embed_json, render_page

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
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        known = dict(attrs)
        self.loads += [(k, v) for k, v in attrs if k in ("src", "href", "action")]
        self.loads += [(k, v) for k, v in attrs if k.startswith("on")]
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""
        self._open = known.get("type") or tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts[self._open] = self.texts.get(self._open, "") + data


def renamed(plan: Plan, name: str) -> Plan:
    """Return the plan with a hostile name wherever a name is free."""
    boxings = tuple(replace(boxing, why=name) for boxing in plan.boxings)
    nodes = {key: replace(n, source=name) for key, n in plan.nodes.items()}
    model = ModelId(name, name)
    return replace(plan, model=model, boxings=boxings, nodes=nodes)


def test_page_holds_the_whole_plan(plan: Plan) -> None:
    page = Page(render_page(plan))
    assert Plan.from_dict(json.loads(page.texts["application/json"])) == plan
    assert page.texts["title"].startswith("Plan of model.TwoLayers on dp=2,tp=2")


def test_page_loads_nothing(plan: Plan) -> None:
    text = render_page(plan)
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
    ):
        assert word not in text, word


def test_policy_lets_only_the_page_s_own_script_run(plan: Plan) -> None:
    page = Page(render_page(plan))
    digest = hashlib.sha256(page.texts["script"].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in page.policy
    assert page.policy.startswith("default-src 'none'; style-src 'sha256-")


def test_hostile_names_stay_text(plan: Plan) -> None:
    tame, hostile = Page(render_page(plan)), Page(render_page(renamed(plan, HOSTILE)))
    assert hostile.tags == tame.tags
    assert hostile.loads == []
    data = json.loads(hostile.texts["application/json"])
    assert data["model"]["class"] == HOSTILE
    assert hostile.texts["title"].startswith(f"Plan of {HOSTILE} on dp=2,tp=2")


def test_script_makes_text_nodes_only() -> None:
    script = files("partita.page").joinpath("page.js").read_text("utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert way not in script, way
    assert "</script" not in script


def test_script_reads_only_what_the_document_has(plan: Plan) -> None:
    script = files("partita.page").joinpath("page.js").read_text("utf-8")
    read = set(re.findall(r"\bplan\.([a-z_]+)", script))
    assert read - set(plan.to_dict()) == set()
    assert {"nodes", "boxings", "parameters", "collectives", "outputs"} <= read


@pytest.mark.parametrize("text", ["a<b>&c", "\u2028", "\ud800", ""])
def test_embedded_json_reads_back(text: str) -> None:
    embedded = embed_json({"key": text})
    assert json.loads(embedded) == {"key": text}
    assert embedded.isascii()
    assert not set("<>&") & set(embedded)
