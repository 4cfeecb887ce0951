"""A search that knows that small messages are sent together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.slow import slow
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import partita as pt
from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.search.beside import MessagesBeside
from partita.compiler.search.decide import Found
from partita.compiler.search.fold import Fold
from partita.one_mesh.planner import Planner
from partita.whole_plans import light_messages
from partita.whole_plans.light_messages import with_latency

MESH = pt.Mesh(dp=2)


class Stack(nn.Module):
    """Layers one after another, and a loss."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def gpt2(rows: int, config: GPT2Config) -> tuple[nn.Module, torch.Tensor]:
    """Return two layers without dropout, and tokens, on the meta device."""
    config.n_layer = 2
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    with torch.device("meta"):
        ids = torch.zeros(rows, 128, dtype=torch.long)
        return GPT2LMHeadModel(config), ids


def far_away(times: float, overlap: float = 0.0) -> Hardware:
    """Return a machine whose messages take so much longer to begin."""
    slow = with_latency(load_hardware("cpu-gloo"), times)
    name = f"cpu-gloo far away {times}, {overlap}"
    return replace(slow, name=name, overlap=overlap)


@pytest.mark.parametrize(
    ("times", "layers", "width", "rows", "overlap"),
    [
        (5.0, 6, 64, 4096, 0.0),
        slow(5.0, 6, 64, 4096, 0.8),
        slow(20.0, 8, 128, 2048, 0.0),
        (20.0, 8, 128, 2048, 0.8),
        (25.0, 8, 256, 2048, 0.0),
        slow(25.0, 8, 256, 2048, 0.8),
    ],
)
def test_data_parallel_is_found_where_only_buckets_pay_for_its_messages(
    times: float, layers: int, width: int, rows: int, overlap: float
) -> None:
    model, x = Stack(layers, width), torch.ones(rows, width)
    options = pt.Options(hardware=far_away(times, overlap))
    pins = {name: "B use=B" for name, _ in model.named_parameters()} | {"x": "S(0)"}
    wanted = pt.plan(model, x, mesh=MESH, options=replace(options, pins=pins))
    one_by_one = pt.plan(model, x, mesh=MESH, options=replace(options, bucket=0))
    found = pt.plan(model, x, mesh=MESH, options=options)
    assert found.predicted.seconds <= wanted.predicted.seconds * (1 + 1e-9)
    assert found.predicted.seconds < one_by_one.predicted.seconds
    (bucket,) = found.buckets
    assert len(bucket) == 2 * layers
    (total,) = found.collectives
    # As exchanges, which begin sooner; that of the loss, too.
    assert (total.kind, total.count) == ("all_to_all", 2)
    assert found.search.gap is None or overlap
    assert "not shown to be optimal" in found.search.status


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        *[pytest.param(t, 4, marks=pytest.mark.slow) for t in (1.0, 5.0)],
        (20.0, 4),
        *[pytest.param(t, 8, marks=pytest.mark.slow) for t in (20.0, 50.0)],
    ],
)
def test_what_a_layer_waits_for_is_not_light(times: float, rows: int) -> None:
    model, ids = gpt2(rows, GPT2Config(n_embd=128, n_head=4, vocab_size=512))

    def planned(pins: dict[str, str]) -> pt.Plan:
        options = pt.Options(hardware=far_away(times), pins=pins)
        return pt.plan(model, mesh=MESH, options=options, input_ids=ids, labels=ids)

    pins = {name: "B use=B" for name, _ in model.named_parameters()}
    wanted = planned(pins | {"input_ids": "S(0)", "labels": "S(0)"})
    assert planned({}).predicted.seconds <= wanted.predicted.seconds * (1 + 1e-9)


def test_what_can_be_hidden_counts_where_latency_is_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ids = gpt2(8, GPT2Config())

    def planned() -> pt.Plan:
        options = pt.Options(hardware=far_away(1e-6, 0.9))
        return pt.plan(model, mesh=MESH, options=options, input_ids=ids, labels=ids)

    asked: list[float] = []
    together = MessagesBeside.together

    def noted(fold: Fold, light: Hardware, part: float) -> MessagesBeside | None:
        asked.append(part)
        return together(fold, light, part)

    monkeypatch.setattr(MessagesBeside, "together", noted)
    found = planned()
    assert asked == [0.05]
    monkeypatch.setattr(light_messages, "_AWAITED", 1.0)
    assert found.predicted.seconds <= planned().predicted.seconds


def test_what_gains_hardly_anything_by_its_own_measure_is_not_drafted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = Stack(6, 64), torch.ones(4096, 64)
    options = pt.Options(hardware=far_away(1e-6, 0.9))
    together = MessagesBeside.together
    drafts: list[Found] = []
    draft = Planner.draft

    def counted(planner: Planner, found: Found) -> pt.Plan:
        drafts.append(found)
        return draft(planner, found)

    monkeypatch.setattr(Planner, "draft", counted)
    monkeypatch.setattr(light_messages, "_OPEN", 0.0)
    for is_as_before, expected in ((True, 1), (False, 2)):

        def posed(
            fold: Fold, light: Hardware, part: float, same: bool = is_as_before
        ) -> MessagesBeside | None:
            return (
                MessagesBeside.of(fold, light) if same else together(fold, light, part)
            )

        monkeypatch.setattr(MessagesBeside, "together", posed)
        drafts.clear()
        pt.plan(model, x, mesh=MESH, options=options)
        assert len(drafts) == expected
    monkeypatch.setattr(light_messages, "_HARDLY", 1.0)
    drafts.clear()
    pt.plan(model, x, mesh=MESH, options=options)
    assert len(drafts) == 1


def test_what_takes_no_time_to_begin_is_not_searched_twice() -> None:
    model, x = Stack(6, 64), torch.ones(4096, 64)
    plan = pt.plan(model, x, mesh=MESH, options=pt.Options(hardware=far_away(1e-6)))
    assert "messages together" not in plan.search.solver


def test_all_latencies_are_less() -> None:
    whole, half = (
        load_hardware("h100-dgx"),
        with_latency(load_hardware("h100-dgx"), 0.5),
    )
    for kind in CollectiveKind:
        before, after = (axis_seconds(kind, 0, MESH, 0, each) for each in (whole, half))
        assert after == pytest.approx(before / 2)
