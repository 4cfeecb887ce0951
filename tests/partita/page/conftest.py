"""Plans to look at, and what opens their pages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page
from tests.browser import Watched, open_html
from tests.models.zoo import gpt2

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.plan.plan import Plan
from partita.compiler.search.arrangement import SINGLE
from partita.compiler.search.parts import Clock
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.pipelines.pipeline_search import PipelineSearch
from partita.pipelines.pipeline_space import PipelineSpace


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Generator[Callable[[str], Page]]:
    """Yield what opens a page; afterwards, nothing may have gone wrong in any."""
    pages: list[tuple[Page, Watched]] = []

    def open_page(html: str) -> Page:
        page, watched = open_html(browser, html, tmp_path / f"page{len(pages)}.html")
        pages.append((page, watched))
        return page

    yield open_page
    for page, watched in pages:
        assert watched.complaints == []
        assert all(url.startswith("file:") for url in watched.requests)
        assert len(watched.requests) == 1  # the page itself
        page.close()


@pytest.fixture(scope="session")
def gpt2_plan() -> Plan:
    """Return the plan of a small GPT-2 on two by two ranks, split as experts would."""
    model, args, kwargs = gpt2()
    pins = {"input_ids": "(S(0), B)", "labels": "(S(0), B)"}
    pins |= {"transformer.h.*.mlp.c_fc.weight": "(B, S(1))"}
    options = pt.Options(pins=pins, hardware="h100-dgx")
    return pt.plan(model, *args, mesh=pt.Mesh(dp=2, tp=2), options=options, **kwargs)


@pytest.fixture(scope="session")
def mixed_plan() -> Plan:
    """Return a plan of two stages with other meshes: dp=2, then dp=2,tp=2."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    asked = pt.Options(
        hardware="cpu-gloo-free",
        microbatches=2,
        schedule="1f1b",
        loss=lambda out: out.square().flatten(1).mean(1).mean(),
    )
    captured = capture(model, (torch.randn(8, 16),), {}, loss=asked.loss)
    parts = in_microbatches(captured, 2, asked.rules)
    planner = Planner(parts, "Sequential", SINGLE, asked)
    meshes = {2: (pt.Mesh(dp=2),), 4: (pt.Mesh(dp=2, tp=2),)}
    space = PipelineSpace(((2, 4),), meshes, asked)
    return PipelineSearch([planner], space, Clock.of(10.0)).run()


@pytest.fixture(scope="session")
def staged_plan() -> Plan:
    """Return a plan of two stages and four microbatches."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 16) for _ in range(4))
    loss = pt.Options(
        microbatches=4,
        schedule="1f1b",
        loss=lambda out: out.square().flatten(1).mean(1).mean(),
    )
    inputs = torch.randn(8, 16)
    return pt.plan(torch.nn.Sequential(*layers), inputs, mesh="pp=2,dp=2", options=loss)
