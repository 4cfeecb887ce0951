"""Ops that do a part of what an op does of the whole batch, and check that they may.

Rows that are written where a mask says are taken in their order: which one a place gets
depends on how many places are before it. Where the places of each part of the batch are
as many as the part's rows, as they are where every text has its own images, a part does
with its own. That is known when it runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partita.compiler.errors import BadBatch
from partita.compiler.rules.fakes import like_first


@torch.library.custom_op("partita::masked_scatter_part", mutates_args=())
def masked_scatter_part(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Compute ``masked_scatter`` of a microbatch.

    Raises:
        BadBatch: when it has more places than elements, or fewer.
    """
    places = int(mask.expand(x.shape).sum())
    if places != source.numel():
        raise BadBatch(
            f"masked_scatter: a microbatch has {places} places for {source.numel()} "
            "elements, of which each is to go to its own; want rows in a batch where "
            "every sample has as many as its mask has places, or microbatches=1"
        )
    return x.masked_scatter(mask, source)


masked_scatter_part.register_fake(like_first)
