"""The page in a real browser: it opens, unfolds, searches, explains, by keys too."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from playwright.sync_api import Locator, Page, expect

from partita.compiler.plan.explain_boxing import removals
from partita.compiler.plan.explain_costs import signed
from partita.compiler.plan.plan import Plan
from partita.page.page import render_page

Opened = Callable[[str], Page]

HOSTILE = "</script><img src=x onerror=alert(1)><b id=hostile>{{plan}}\u2028"
ADDMM = "transformer.h.0.mlp.c_fc/addmm/0"


@pytest.fixture
def page(opened: Opened, gpt2_plan: Plan) -> Page:
    """Return the page of a small GPT-2."""
    return opened(render_page(gpt2_plan))


def box(page: Page, start: str) -> Locator:
    """Return the boxes of the graph whose spoken name starts so."""
    return page.locator(f'#graph g.box[aria-label^="{start}"]')


def find(page: Page, query: str) -> None:
    """Search, and go to the first that is found."""
    page.fill("#search", query)
    page.keyboard.press("Enter")


def test_it_opens_with_the_modules_and_the_figures(page: Page, gpt2_plan: Plan) -> None:
    expect(box(page, "module transformer,")).to_have_count(1)
    expect(page.locator("#what")).to_contain_text("dp=2,tp=2")
    expect(page.locator("#details")).to_contain_text("GPT2LMHeadModel")
    expect(page.locator("#panel")).to_contain_text("Predicted step")
    for part in gpt2_plan.predicted.seconds_by_part:
        expect(page.locator("#panel .key").first).to_contain_text(part)


def test_a_module_unfolds_into_its_ops_and_folds(page: Page) -> None:
    find(page, ADDMM)
    expect(box(page, "addmm,")).to_have_count(1)
    module = box(page, "module c_fc,")
    expect(module).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Backspace")  # to the module around it
    expect(module).to_be_focused()
    page.keyboard.press("Enter")
    expect(box(page, "addmm,")).to_have_count(0)
    expect(module).to_have_attribute("aria-expanded", "false")
    module.locator(".toggle").click()
    expect(box(page, "addmm,")).to_have_count(1)


def test_an_op_shows_shape_placements_time_and_bytes(
    page: Page, gpt2_plan: Plan
) -> None:
    find(page, ADDMM)
    node = gpt2_plan.nodes[ADDMM]
    card = box(page, "addmm,")
    expect(card).to_contain_text(str(node.types[0]))
    kinds = {"S": "split", "B": "broadcast", "P": "partial"}
    placement = node.signature.results[0]
    assert placement is not None
    chips = card.locator("g.chip")
    expect(chips).to_have_count(2)
    for chip, axis, sharding in zip(
        chips.all(), ("dp", "tp"), placement.shardings, strict=True
    ):
        expect(chip).to_contain_text(axis)
        expect(chip).to_have_class(f"fine chip {kinds[str(sharding)[0]]}")
    expect(card).to_contain_text("a rank")


def test_a_click_explains_as_the_plan_does(page: Page, gpt2_plan: Plan) -> None:
    find(page, ADDMM)
    box(page, "addmm,").click(position={"x": 20, "y": 14})
    details = page.locator("#details")
    node = gpt2_plan.nodes[ADDMM]
    expect(details).to_contain_text(node.source)
    expect(details.locator(".alternatives > li")).to_have_count(len(node.alternatives))
    first = details.locator(".alternatives .cost").first.inner_text()
    assert f"{first} a step" in gpt2_plan.explain(ADDMM)
    find(page, "parameter:transformer.h.0.mlp.c_fc.weight")
    expect(details).to_contain_text("pinned to (B, S(1)) by")
    find(page, ADDMM)
    for operand in node.operands:
        expect(details.locator(f'button[title="{operand.key}"]').first).to_be_visible()


def printed_formulas(text: str) -> list[str]:
    """Return the formulas that ``explain`` prints."""
    head = "  formula    "
    return [line[len(head) :] for line in text.split("\n") if line.startswith(head)]


def test_an_op_and_a_collective_tell_their_formulas(
    page: Page, gpt2_plan: Plan
) -> None:
    find(page, ADDMM)
    details = page.locator("#details")
    (formula,) = printed_formulas(gpt2_plan.explain(ADDMM))
    expect(details.locator(".formula code")).to_have_text(formula)
    expect(details.locator(".formula p")).to_contain_text("with dp=2, flops_per_s=")
    boxing = max(gpt2_plan.boxings, key=lambda boxing: boxing.seconds)
    page.get_by_role("tab", name="Collectives").click()
    page.locator("#panel button.boxing").first.click()
    expect(details.locator("h2").first).to_contain_text(str(boxing.lowering[0]))
    formulas = printed_formulas(gpt2_plan.explain(boxing.key))
    assert formulas
    expect(details.locator(".formula code")).to_have_text(formulas)


def test_where_memory_binds_it_says_what_room_is_worth(
    opened: Opened, gpt2_plan: Plan
) -> None:
    search = replace(gpt2_plan.search, memory_price=2e-12)
    node = gpt2_plan.nodes[ADDMM]
    first, *others = node.alternatives
    better = replace(first, seconds=-2e-6, held_bytes=2**20)
    nodes = {**gpt2_plan.nodes, ADDMM: replace(node, alternatives=(better, *others))}
    plan = replace(gpt2_plan, search=search, nodes=nodes)
    assert "but hold 1 MiB more, which are worth 2.1 us" in plan.explain(ADDMM)
    page = opened(render_page(plan))
    room = "1 MiB more on a rank would save about 2.1 us a step"
    expect(page.locator("#details")).to_contain_text(room)
    find(page, ADDMM)
    worth = "but hold 1 MiB more, which are worth 2.1 us"
    expect(page.locator("#details")).to_contain_text(worth)


def test_a_collective_stands_on_its_edge_and_tells_why(
    page: Page, gpt2_plan: Plan
) -> None:
    sources = {key: node.source for key, node in gpt2_plan.nodes.items()}
    told = (b for b in gpt2_plan.boxings if [*removals(gpt2_plan, b)])
    boxing = max((b for b in told if sources[b.producer]), key=lambda b: b.bytes)
    key = boxing.consumers[0]
    find(page, key if key in gpt2_plan.nodes else boxing.producer)
    page.locator("g.label.moves.lit", has_text=str(boxing.lowering[0])).first.click()
    details = page.locator("#details")
    for said in (boxing.why, boxing.producer, *(str(s) for s in boxing.lowering)):
        expect(details).to_contain_text(said)
    expect(details).to_contain_text(sources[boxing.producer])
    for what, seconds in removals(gpt2_plan, boxing):
        expect(details).to_contain_text(f"{signed(seconds)} a step, if {what}")


def test_search_tells_what_it_finds_and_goes_there(page: Page) -> None:
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("h.1 gelu nothing-like-it")
    expect(page.locator("#found")).to_contain_text("nothing")
    page.fill("#search", "addmm c_fc forward")
    expect(page.locator("#found li")).to_have_count(2)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#details")).to_contain_text(ADDMM)
    expect(page.locator("g.box.selected")).to_have_count(1)
    assert page.url.endswith("#" + ADDMM.replace("/", "%2F"))


def test_all_of_it_goes_by_keys(page: Page) -> None:
    page.locator("#outline summary").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#outline details details").first).to_have_attribute("open", "")
    page.locator("#graph").focus()
    page.keyboard.press("ArrowDown")
    chosen = page.locator("g.box.selected")
    expect(chosen).to_be_focused()
    before = chosen.get_attribute("aria-label")
    page.keyboard.press("ArrowDown")
    assert page.locator("g.box.selected").get_attribute("aria-label") != before
    find(page, "addmm c_fc")
    page.keyboard.press("Tab")
    page.get_by_role("tab", name="Step").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Timeline")).to_be_focused()
    expect(page.locator("canvas.timeline")).to_be_visible()


def test_what_the_forward_saved_is_drawn_for_what_is_selected(page: Page) -> None:
    find(page, "transformer.h.0.attn/partita.attention/0 forward")
    expect(page.locator("path.saved")).not_to_have_count(0)
    page.locator('#views button[value="forward"]').click()
    expect(page.locator("path.saved")).to_have_count(0)


def test_a_module_unfolds_whole_and_all_fold(page: Page) -> None:
    find(page, ADDMM)
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    for _ in range(8):  # until all of the module stands in the window
        page.keyboard.press("-")
    expect(box(page, "module act,")).to_have_attribute("aria-expanded", "false")
    page.get_by_role("button", name="unfold all of it").click()
    expect(box(page, "module act,")).to_have_attribute("aria-expanded", "true")
    page.locator("#fold").click()
    expect(box(page, "addmm,")).to_have_count(0)


def test_heat_and_halves_of_the_step_are_chosen(page: Page) -> None:
    page.locator('#heats button[value="time"]').click()
    expect(page.locator("g.box .share").first).to_contain_text("%")
    fills = page.locator("g.box:not(.unfolded) > .frame").evaluate_all(
        "all => all.map(one => getComputedStyle(one).fill)"
    )
    assert len(set(fills)) > 2
    find(page, "addmm c_fc")
    page.locator('#views button[value="forward"]').click()
    expect(page.locator("g.edge.back")).to_have_count(0)
    page.locator('#views button[value="backward"]').click()
    expect(box(page, "addmm,")).to_have_count(0)


def test_the_figures_of_a_pipeline(opened: Opened, staged_plan: Plan) -> None:
    page = opened(render_page(staged_plan))
    page.get_by_role("tab", name="Timeline").click()
    panel = page.locator("#panel")
    expect(panel).to_contain_text("ranks 0\u20131, stage 0")
    expect(panel).to_contain_text("ranks 2\u20133, stage 1")
    canvas = page.locator("canvas.timeline")
    canvas.focus()
    for key in ("+", "ArrowRight", "-", "0"):
        canvas.press(key)
    page.locator('#heats button[value="stage"]').click()
    expect(page.locator("#stagekey")).to_have_text("stage 0stage 1")
    page.get_by_role("tab", name="Memory").click()
    expect(panel.locator("svg.curve")).to_have_count(2)
    expect(panel).to_contain_text("optimizer")
    page.get_by_role("tab", name="Communication").click()
    expect(panel).to_contain_text("stages")
    find(page, "received-forward")
    sent = page.locator("g.label.moves", has_text="send stage 0 to 1")
    expect(sent).to_have_count(1)


def shown_axes(place: Locator) -> list[str]:
    """Return the axes that stand on the chips of a place."""
    return place.locator(".chip .axis").all_inner_texts()


def test_stages_of_other_meshes_name_their_own_axes(
    opened: Opened, mixed_plan: Plan
) -> None:
    assert str(mixed_plan.mesh) == "rank=6"
    page = opened(render_page(mixed_plan))
    expect(page.locator("#what")).to_contain_text("dp=2 \u2192 dp=2,tp=2")
    details = page.locator("#details")
    expect(details).to_contain_text("Stages")
    for text in ("0\u20131", "2\u20135", "dp=2,tp=2"):
        expect(details.locator("table").first).to_contain_text(text)
    find(page, "received-forward")
    sent = details.locator("ul.uses li", has_text="send stage 0 to 1")
    assert shown_axes(sent) == ["dp", "dp", "tp"]  # made on stage 0, sent to stage 1
    expect(sent).to_contain_text("\u00b7 0 s")  # as the terminal has it
    sent.locator("button.boxing").click()
    assert shown_axes(details) == ["dp", "dp", "tp", "dp", "tp"]
    page.get_by_role("tab", name="Parameters").click()
    for name in mixed_plan.parameters:
        row = page.locator("#panel tr", has_text=name).first
        stage = mixed_plan.parameters[name].homes[0]
        axes = mixed_plan.stages[stage].mesh.names
        assert shown_axes(row)[: len(axes)] == list(axes)


def test_what_leaves_a_stage_has_the_stage_s_axes(
    opened: Opened, staged_plan: Plan
) -> None:
    page = opened(render_page(staged_plan))
    page.get_by_role("tab", name="Outputs").click()
    assert set(shown_axes(page.locator("#panel"))) == {"dp"}
    page.get_by_role("tab", name="Collectives").click()
    for button in page.locator("#panel button.boxing").all():
        button.click()
        assert set(shown_axes(page.locator("#details"))) == {"dp"}


def test_light_and_dark_differ_and_are_legible(page: Page) -> None:
    def colors() -> list[str]:
        return page.evaluate(
            """() => ["backgroundColor", "color"].map(
                (name) => getComputedStyle(document.body)[name])"""
        )

    light = colors()
    page.locator("#theme").click()
    assert colors() != light
    ground, text = colors()
    assert brightness(text) - brightness(ground) > 150
    assert brightness(light[0]) - brightness(light[1]) > 150


def brightness(color: str) -> float:
    """Return how bright a color like ``rgb(1, 2, 3)`` is, up to 255."""
    parts = color[color.index("(") + 1 : -1].split(",")
    return sum(map(float, parts[:3])) / 3


def renamed(plan: Plan, names: Sequence[str]) -> Plan:
    """Return the plan with a hostile end to each name, wherever it stands."""
    text = json.dumps(plan.to_dict())
    for name in names:
        text = text.replace(name, name + json.dumps(HOSTILE)[1:-1])
    return Plan.from_dict(json.loads(text))


def test_hostile_names_are_text(opened: Opened, plan: Plan) -> None:
    hostile = renamed(plan, ["up.weight", "relu/0", "model.py:7", "model.TwoLayers"])
    page = opened(render_page(hostile))
    for key in hostile.nodes:
        find(page, key)
        expect(page.locator("#details h2").first).to_be_visible()
    for tab in page.get_by_role("tab").all():
        tab.click()
    find(page, "down/mm/0")
    expect(page.locator("#details")).to_contain_text("relu/0" + HOSTILE.strip())
    for selector in ("#hostile", "img", "script >> nth=2"):
        expect(page.locator(selector)).to_have_count(0)


def test_it_draws_only_what_stands_in_the_window(page: Page) -> None:
    find(page, ADDMM)
    for _ in range(6):
        page.locator("#in").click()
    page.wait_for_function(
        "document.querySelectorAll('g.box:not(.unfolded)').length < 8"
    )
    page.locator("#fit").click()
    page.wait_for_function(
        "document.querySelectorAll('g.box:not(.unfolded)').length > 8"
    )
