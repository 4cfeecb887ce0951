"""What is asked of a pipeline and what its plan says: cuts, pins, memory, schedules."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from tests.models.cut import drawn, search_of
from tests.models.pipelines import PIPELINES
from torch import nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import BadMesh, BadOptions, BadPlan, NoSolution
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.plan.stages import read_schedule, stage_documents
from partita.compiler.schedules.schedule import Work
from partita.compiler.search.stage_cost import peak_bytes
from partita.compiler.simulate.timetable import make_timetable
from partita.microbatched import in_microbatches


def chain(**options: object) -> pt.Plan:
    model, args, kwargs = PIPELINES["chain"]()
    own = {"microbatches": 4, "schedule": "1f1b", "time_limit": 10.0, **options}
    asked = pt.Options(**own)  # type: ignore[arg-type]
    return pt.plan(model, *args, mesh="pp=2,dp=2", options=asked, **kwargs)


@lru_cache
def plain() -> pt.Plan:
    return chain()


def test_stages_have_their_ranks_and_all_nodes() -> None:
    plan = plain()
    assert str(plan.mesh) == "pp=2,dp=2"
    assert [stage.ranks for stage in plan.stages] == [(0, 1), (2, 3)]
    keys = [key for stage in plan.stages for key in stage.nodes]
    assert sorted(keys) == sorted(plan.nodes)
    assert pt.Plan.from_dict(plan.to_dict()) == plan


def test_the_schedule_is_in_the_plan() -> None:
    schedule = read_schedule(chain(schedule="zero-bubble"))
    assert schedule.name == "zero-bubble"
    works = {action.work for _, action in schedule.actions()}
    assert {Work.BACKWARD_INPUT, Work.SEND_FORWARD, Work.REDUCE} <= works


@pytest.mark.parametrize("name", ["chain", "tied"])
def test_of_the_stages_of_a_rank_one_runs_at_a_time(name: str) -> None:
    """A plan holds what its step is simulated to, or more, and at most all at once."""
    captured = in_microbatches(capture(*PIPELINES[name]()), 4, pt.default_rules)
    search = search_of(captured, "pp=2", schedule="interleaved", stages_per_rank=2)
    less = 0
    for seed in range(6):
        plan = drawn(search, seed)
        timetable = make_timetable(plan)
        rows = range(len(plan.schedule.rows))
        at_once = [0 for _ in rows]
        for number, part in enumerate(stage_documents(plan)):
            live = plan.schedule.most_live[number]
            at_once[plan.schedule.rank_of[number]] += peak_bytes(part, live)
        simulated = max(timetable.peak(row).bytes for row in rows)
        most = max(at_once)
        assert min(simulated, most) <= plan.predicted.bytes <= most, seed
        less += plan.predicted.bytes < most
    assert less


def test_a_tied_parameter_is_sent_once_and_its_gradient_comes_home() -> None:
    model, args, kwargs = PIPELINES["tied"]()
    options = pt.Options(microbatches=2, schedule="1f1b")
    plan = pt.plan(model, *args, mesh="pp=2,tp=1", options=options, **kwargs)
    name = "words.weight"
    assert plan.parameters[name].homes == (0, 1)
    ways = {
        (transfer.kind, transfer.sender, transfer.receiver)
        for transfer in plan.transfers
        if transfer.name == name
    }
    assert ways == {(TransferKind.STATE, 0, 1), (TransferKind.GRADIENT, 1, 0)}
    text = plan.explain(name)
    assert "stage      0, ranks 0" in text
    assert "handed     state, stage 0 to 1, (B,) -> (B,), 1.5 KiB" in text


def test_pins_and_recompute_reach_their_stages_alone() -> None:
    plan = chain(
        pins={"layers.0.weight": "(S(0),)", "layers.7.*": "(B,)"},
        recompute=("layers.1",),
    )
    assert str(plan.parameters["layers.0.weight"].placements.storage) == "(S(0),)"
    assert str(plan.parameters["layers.7.weight"].placements.storage) == "(B,)"
    assert dict(plan.options.pins) == {
        "layers.0.weight": "(S(0),)",
        "layers.7.*": "(B,)",
    }
    assert "pinned to" in plan.explain("layers.0.weight")


def test_what_names_nothing_in_any_stage_is_refused() -> None:
    with pytest.raises(BadOptions, match=r"'layers\.9\.weight'"):
        chain(pins={"layers.9.weight": "(B,)"})
    with pytest.raises(BadOptions, match=r"recompute: 'layer.\*' is the name of no"):
        chain(recompute=("layer.*",))


def test_too_little_memory_is_told_of() -> None:
    free = plain().predicted.bytes
    assert chain(memory=free, time_limit=2.0).predicted.bytes <= free
    with pytest.raises(NoSolution, match="memory"):
        chain(memory=4096, time_limit=1.0)


def test_stages_come_first_in_a_mesh() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    with pytest.raises(BadMesh, match="want it first, like pp=2,dp=2"):
        pt.plan(model, *args, mesh="dp=2,pp=2", **kwargs)


def test_a_schedule_needs_stages() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    options = pt.Options(schedule="gpipe")
    with pytest.raises(BadOptions, match=r"schedule is 'gpipe', .* has no axis 'pp'"):
        pt.plan(model, *args, mesh="dp=2", options=options, **kwargs)


def test_one_stage_is_no_pipeline() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    plan = pt.plan(model, *args, mesh="pp=1,dp=2", **kwargs)
    assert str(plan.mesh) == "dp=2"
    assert len(plan.stages) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("schedule", "rows"), "schedule.rank_of[1]: found 1; there are 1 rows"),
        (("schedule", "most_live"), "schedule.most_live: found 1 entries, wanted 2"),
        (("transfers",), "transfers: found none of"),
    ],
)
def test_a_plan_whose_stages_do_not_pair_up_is_refused(
    change: tuple[str, ...], message: str
) -> None:
    document = plain().to_dict()
    inside = document
    for key in change[:-1]:
        inside = inside[key]
    inside[change[-1]] = inside[change[-1]][:1]
    with pytest.raises(BadPlan) as caught:
        pt.Plan.from_dict(document)
    assert message in str(caught.value)


def test_a_schedule_that_waits_for_ever_is_refused() -> None:
    document = plain().to_dict()
    rows = document["schedule"]["rows"]
    actions = rows[0].split()
    actions.remove("0RECV_B0")
    rows[0] = " ".join(["0RECV_B0", *actions])
    with pytest.raises(BadPlan, match="waits for ever"):
        pt.Plan.from_dict(document)


class TwoTables(nn.Module):
    """Two large tables that take no time, then layers that do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Embedding(4000, 64)
        self.second = nn.Embedding(4000, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``words`` ``[batch]``."""
        x = torch.tanh(self.first(words))
        x = torch.tanh(x + self.second(words))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def test_the_cut_keeps_to_the_memory() -> None:
    def planned(memory: str | None) -> pt.Plan:
        options = pt.Options(
            microbatches=2, schedule="1f1b", memory=memory, optimizer="fused-adamw"
        )
        return pt.plan(TwoTables(), words, mesh="pp=2", options=options)

    words = torch.arange(256)
    free, within = planned(None), planned("7MiB")
    assert free.parameters["second.weight"].homes == (0,)
    assert within.parameters["second.weight"].homes == (1,)
    assert within.predicted.bytes <= 7 << 20 < free.predicted.bytes
    assert within.predicted.seconds > free.predicted.seconds


def test_small_ops_of_every_stage_are_fused() -> None:
    plan = chain(fuse=True, hardware="h100-dgx")
    alone = chain(hardware="h100-dgx")
    assert plan.predicted.seconds <= alone.predicted.seconds
