"""How many microbatches a plan is made for: as asked, or as the memory limit has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.search.wanted import ANY
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.search import Search
from partita.whole_plans.beside_search import BesideSearch, First

WIDTH, BATCH = 32, 512


class Tower(nn.Module):
    """Layers and activations, many more of these than parameters."""

    def __init__(self, num_layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(num_layers):
            layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean square of what the layers make of ``x``."""
        return self.body(x).square().mean()


def planned(batch: int = BATCH, **options: Any) -> pt.Plan:
    where: dict[str, Any] = {"mesh": options.pop("mesh", "tp=2")}
    if "devices" in options:
        where = {"devices": options.pop("devices")}
    options.setdefault("time_limit", 20)
    x = torch.randn(batch, WIDTH)
    return pt.plan(Tower(), x, options=pt.Options(**options), **where)


def test_without_a_limit_the_batch_is_one() -> None:
    assert planned().microbatches == 1


def test_what_fits_in_one_piece_stays_so() -> None:
    free = planned()
    assert planned(memory=free.predicted.bytes).microbatches == 1


@pytest.mark.slow
def test_a_limit_that_one_piece_cannot_keep_to_is_kept_in_parts() -> None:
    limit = "200KiB"
    with pytest.raises(pt.PartitaError, match="the limit is 200 KiB"):
        planned(memory=limit, microbatches=1, time_limit=4)
    found = planned(memory=limit, time_limit=12)
    assert found.microbatches > 1
    assert found.predicted.bytes <= 200 * 1024
    for other in (2,):
        try:
            fixed = planned(memory=limit, microbatches=other, time_limit=6)
        except pt.PartitaError:
            continue
        assert found.predicted.seconds <= fixed.predicted.seconds * (1 + 1e-9)
    report = pt.verify(Tower(), torch.randn(BATCH, WIDTH), plan=found)
    assert report.ok, report


def test_no_more_parts_are_tried_once_more_are_no_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    first = BesideSearch.first

    def only_whole(beside: BesideSearch, search: Search) -> First:
        asked.append(search.planner.captured.program.in_time.count)
        whole = replace(search, wanted=ANY)
        found = first(beside, whole)
        search.limited = whole.limited
        if asked[-1] > 1:
            raise NotFaster(found.plan.predicted.seconds)
        return found

    def unbounded(_: Search) -> float:
        return 0.0

    monkeypatch.setattr(BesideSearch, "first", only_whole)
    monkeypatch.setattr(Search, "least_s", unbounded)
    assert planned(memory="400KiB", time_limit=4).microbatches == 1
    assert asked[:2] == [1, 2]
    assert max(asked) == 2  # one may be tried once more, if its time was too short


def test_meshes_are_compared_with_their_own_microbatches() -> None:
    found = planned(memory="200KiB", devices=2, time_limit=3)
    assert found.predicted.bytes <= 200 * 1024


@pytest.mark.slow
def test_no_more_parts_are_tried_than_divide_the_batch() -> None:
    with pytest.raises(pt.PartitaError, match="the limit is 50 KiB"):
        planned(batch=12, memory="50KiB", time_limit=4)


def test_a_model_that_cannot_be_cut_says_so_if_asked() -> None:
    with pytest.raises(pt.PartitaError, match="cuts dim 0 of no input"):
        planned(microbatches=3)


def test_the_plan_says_its_parts() -> None:
    found = planned(microbatches=4)
    assert found.microbatches == 4
    assert "4 microbatches" in str(found)
    assert "accumulation" in found.predicted.seconds_by_part
    (x,) = [n for n in found.nodes.values() if n.role and n.role.name == "x"]
    assert str(x.types[0]) == f"f32[{BATCH // 4}, {WIDTH}]"
    again = pt.Plan.from_dict(found.to_dict())
    assert again == found


def test_a_part_of_another_size_is_refused() -> None:
    document = planned(microbatches=4).to_dict()
    document["microbatches"] = 2
    with pytest.raises(pt.PartitaError, match=r"input:x.types: found f32\[128, 32\]"):
        pt.Plan.from_dict(document)
