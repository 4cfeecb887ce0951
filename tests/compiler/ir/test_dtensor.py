"""Placements to and from DTensor's."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.compiler.ir.placement_strategies import any_placements
from torch.distributed.tensor import Partial, Replicate, Shard

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.dtensor import from_dtensor, to_dtensor
from partita.compiler.ir.sbp import Placement, Split


@given(any_placements())
def test_there_and_back_unless_segmented(placement: Placement) -> None:
    splits = [s for s in placement.shardings if isinstance(s, Split)]
    if any(split.segments for split in splits):
        with pytest.raises(BadPlacement, match="DTensor has no segmented split"):
            to_dtensor(placement)
    else:
        assert from_dtensor(to_dtensor(placement)) == placement


def test_the_kinds_of_placement() -> None:
    theirs = (Shard(1), Replicate(), Partial("max"), Partial())
    assert to_dtensor(Placement.parse("(S(1), B, P(max), P)")) == theirs


def test_segmented_split_says_what_to_do_instead() -> None:
    with pytest.raises(BadPlacement) as caught:
        to_dtensor(Placement.parse("(B, S(1; 4|4|4))"))
    assert str(caught.value) == (
        "placement (B, S(1; 4|4|4)): DTensor has no segmented split S(1; 4|4|4); box "
        "the tensor to S(1) or B on that axis first"
    )


def test_foreign_reduction_is_refused() -> None:
    with pytest.raises(BadPlacement) as caught:
        from_dtensor([Partial("avg")])
    assert str(caught.value) == (
        "DTensor placement Partial(avg) has no counterpart; want Shard(dim), "
        "Replicate(), or Partial of max, min, sum"
    )
