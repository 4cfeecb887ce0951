"""The loss of several labels a row, which end at the first -1.

In a trace torch (2.13) takes it apart, and there counts what stands behind the -1 as so
many times the class 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return how much less than 1 the labels' scores are above those of the others.

    Args:
        input: scores ``[batch, class]`` or ``[class]``.
        target: labels, shaped alike; those behind the first -1 do not count.
        size_average: an older way to ask for a sum.
        reduce: an older way to ask for one loss a row.
        reduction: ``mean``, ``sum`` or ``none``.
    """
    if reduce is False:
        reduction = "none"
    elif size_average is not None or reduce is not None:
        reduction = "sum" if size_average is False else "mean"
    scores, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    num_classes = scores.shape[1]
    classes = torch.arange(num_classes, device=labels.device)
    ends = torch.where(labels == -1, classes, num_classes).amin(1, keepdim=True)
    counts = classes < ends
    own = scores.gather(1, torch.where(counts, labels, 0))
    named = torch.where(counts, labels, -1)
    is_label = (named.unsqueeze(2) == classes).any(1)
    margins = functional.relu(1 - own.unsqueeze(2) + scores.unsqueeze(1))
    kept = counts.unsqueeze(2) & ~is_label.unsqueeze(1)
    losses = torch.where(kept, margins, 0).sum((1, 2)) / num_classes
    if reduction == "mean":
        return losses.mean()
    return losses.sum() if reduction == "sum" else losses.reshape(target.shape[:-1])
