"""What a notebook shows: the terminal's figures, escaped, and nothing that runs."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from operator import methodcaller

import pytest

from partita.compiler.plan.document import ModelId
from partita.compiler.plan.notebook import MOST_CHANGES, MOST_TENSORS
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.table import collective_table, facts, title

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b[2J"
SHOWN = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")

TAGS = {"div", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}


class Seen(HTMLParser):
    """Collects the tags, attributes and texts of HTML, cells apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.cells.append(data.strip())


def seen(shown: object) -> Seen:
    """Return what a notebook shows of something."""
    html = methodcaller("_repr_html_")(shown)
    assert isinstance(html, str)
    found = Seen(html)
    assert found.open == []
    return found


def in_turn(part: list[str], whole: list[str]) -> bool:
    """Whether some cells stand in a row."""
    size = len(part)
    return any(part == whole[at : at + size] for at in range(len(whole)))


def test_it_shows_what_the_terminal_prints(plan: Plan) -> None:
    cells = seen(plan).cells
    assert cells[0] == title(plan)
    for name, text in facts(plan):
        assert f"{name}: {text}" in cells
    assert in_turn(["communication", "20 us", "55.6%"], cells)
    assert in_turn(["activations", "1.5 KiB", "75.0%"], cells)
    for row in collective_table(plan).rows:
        assert in_turn(list(row), cells)
    assert in_turn(["up.weight", "x1", "f32[6, 10]", "(B, S(1))"], cells)
    assert in_turn(["same", "same", "same", "120 B"], cells)


def test_results_that_take_no_time_are_left_out(plan: Plan) -> None:
    slow = {k: replace(n, seconds=0.0) for k, n in plan.nodes.items() if k != "relu/0"}
    quick = replace(plan, nodes={**plan.nodes, **slow})
    assert "up/mm/0" in seen(plan).cells
    assert "up/mm/0" not in seen(quick).cells
    assert "relu/0" in seen(quick).cells


def test_only_the_largest_are_shown(plan: Plan) -> None:
    one = plan.parameters["up.weight"]
    many = {f"w{'i' * i}": replace(one, shape=(6, 10 + 2 * i)) for i in range(20)}
    cells = seen(replace(plan, parameters=many)).cells
    shown = [cell for cell in cells if cell in many]
    assert shown == [*reversed(many)][:MOST_TENSORS]


@pytest.mark.parametrize("what", ["plan", "difference"])
def test_names_stay_text(plan: Plan, what: str) -> None:
    text = json.dumps(plan.to_dict())
    for name in ("up.weight", "relu/0", "down"):
        text = text.replace(name, name + json.dumps(HOSTILE)[1:-1])
    hostile = replace(Plan.from_dict(json.loads(text)), model=ModelId(HOSTILE, "1"))
    shown = seen(hostile if what == "plan" else plan.diff(hostile))
    assert set(shown.tags) <= TAGS
    assert shown.attributes == []
    assert any(SHOWN in cell for cell in shown.cells)
    assert all(cell.isprintable() for cell in shown.cells)


def test_a_difference_shows_what_moved_and_its_price(plan: Plan) -> None:
    assert seen(plan.diff(plan)).cells[0] == "the plans decide alike"
    one = plan.parameters["up.weight"]
    more = {f"w{'i' * i}": one for i in range(MOST_CHANGES + 3)}
    found = plan.diff(replace(plan, parameters={**plan.parameters, **more}))
    cells = seen(found).cells
    assert cells[0] == "what differs"
    assert in_turn(["w", "-", "f32[6, 10]"], cells)
    assert "... and 3 more" in cells
    assert "step" in cells
