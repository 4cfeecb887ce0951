"""The pictures of docs/page.md: plans of GPT-2 and Mixtral, drawn by a real browser.

python -m tests.partita.page.screenshots docs
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from playwright.sync_api import Browser, Page
from tests.browser import open_html, started_browser

import partita as pt
from partita.compiler.plan.plan import Plan
from partita.page.page import render_diff_page, render_page

HARDWARE = "h100-dgx"


def language_model(kind: type[torch.nn.Module], config: Any, **asked: Any) -> Plan:
    """Plan a causal language model on a batch of 8 texts of 512 tokens."""
    with torch.device("meta"):
        model = kind(config)
        ids = torch.zeros(8, 512, dtype=torch.int64)
    mesh = asked.pop("mesh")
    options = pt.Options(hardware=HARDWARE, **asked)
    return pt.plan(model, input_ids=ids, labels=ids, mesh=mesh, options=options)


def gpt2(**asked: Any) -> Plan:
    """Return a plan of GPT-2 as it was published, without dropout."""
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return language_model(transformers.GPT2LMHeadModel, config, **asked)


def mixtral(**asked: Any) -> Plan:
    """Return a plan of a small Mixtral, of four layers with eight experts each."""
    config = transformers.MixtralConfig(
        num_hidden_layers=4,
        hidden_size=1024,
        intermediate_size=3584,
        num_attention_heads=16,
        num_key_value_heads=8,
        use_cache=False,
    )
    return language_model(transformers.MixtralForCausalLM, config, **asked)


def take(browser: Browser, folder: Path) -> Iterator[Path]:
    """Take all pictures; yield their files."""

    def shot(page: Page, name: str) -> Path:
        page.wait_for_timeout(300)  # until the last frame is drawn
        path = folder / f"page-{name}.png"
        page.screenshot(path=path)
        return path

    def opened(html: str, *, is_dark: bool = False) -> Page:
        page, _ = open_html(browser, html, folder / "page.html", is_dark=is_dark)
        (folder / "page.html").unlink()
        return page

    def find(page: Page, query: str) -> None:
        page.fill("#search", query)
        page.keyboard.press("Enter")

    small = gpt2(mesh="dp=2,tp=2")
    page = opened(render_page(small))
    yield shot(page, "gpt2")
    page = opened(render_page(small), is_dark=True)
    find(page, "transformer.h.0.mlp.c_fc/addmm/0")
    page.get_by_role("tab", name="Communication").click()
    yield shot(page, "gpt2-unfolded")
    page = opened(render_page(mixtral(mesh="pp=2,dp=2,tp=2", memory="2GiB")))
    page.locator('#heats button[value="stage"]').click()
    page.get_by_role("tab", name="Timeline").click()
    yield shot(page, "mixtral")
    page.locator('#heats button[value="time"]').click()
    find(page, "model.layers.0.mlp.experts/ forward")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.get_by_role("tab", name="Memory").click()
    yield shot(page, "mixtral-memory")
    page = opened(render_diff_page(small, gpt2(mesh="tp=4")))
    find(page, "transformer.h.0.mlp.c_fc/addmm/0")
    yield shot(page, "diff")


if __name__ == "__main__":
    with started_browser() as started:
        for path in take(started, Path(sys.argv[1])):
            print(path)
