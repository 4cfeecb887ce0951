"""Damaged and hostile plan files: refused in one line, or good for all that is done."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from mutated import SENTINEL, mutated
from small_plan import small_plan
from tests.models.pipelines import BATCH, WIDTH, Chain

import partita as pt
from partita.cli.main import main
from partita.compiler.errors import BadOptions, PartitaError
from partita.compiler.export.exporter import Exporter
from partita.compiler.plan.difference_table import print_difference
from partita.compiler.plan.plan import Plan
from partita.exporters import EXPORTERS
from partita.page.page import render_page
from partita.whole_plans.recount import recount

NUM_QUICK, NUM_ALL = 60, 1000


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """Return plans of one stage and of two."""
    torch.manual_seed(0)
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    options = pt.Options(microbatches=2, schedule="1f1b")
    staged = pt.plan(Chain(), *batch, mesh="pp=2,dp=2", options=options)
    return [small_plan().to_dict(), staged.to_dict()]


def use(plan: Plan) -> None:
    """Do what commands do with a plan."""
    str(plan)
    print_difference(plan.diff(plan))
    for key in [*plan.nodes][:3]:
        plan.explain(key)
    for exporter in EXPORTERS:
        if isinstance(exporter, Exporter):
            with suppress(BadOptions):  # not of plans with stages, or without
                exporter.write(plan)
    recount(plan)
    render_page(plan)
    assert Plan.from_dict(plan.to_dict()) == plan


def tried(
    seeds: range,
    documents: list[dict[str, Any]],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> int:
    """Load every mutant; return how many were refused."""
    refused = 0
    path = folder / "mutant.json"
    for seed in seeds:
        path.write_bytes(mutated(documents[seed % len(documents)], seed))
        try:
            plan = Plan.load(path)
        except PartitaError as refusal:
            refused += 1
            message = str(refusal)
            assert message.startswith(f"{path}: "), (seed, message)
            assert message.isprintable(), seed
            assert len(message) < 1000, seed
            if seed % 10 == 0:
                assert main(["show", str(path)]) == 2
                assert capsys.readouterr() == ("", f"partita: {message}\n"), seed
        else:
            use(plan)
        assert not Path(SENTINEL).exists()
        assert not (folder / SENTINEL).exists()
    return refused


def test_mutants_are_refused_in_a_line_or_work(
    documents: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = tried(range(NUM_QUICK), documents, tmp_path, capsys)
    assert NUM_QUICK // 2 < refused < NUM_QUICK


@pytest.mark.slow
def test_a_thousand_mutants_are_refused_in_a_line_or_work(
    documents: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = tried(range(NUM_QUICK, NUM_ALL), documents, tmp_path, capsys)
    assert NUM_ALL // 2 < refused < NUM_ALL
