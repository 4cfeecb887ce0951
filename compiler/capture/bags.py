"""Bags of equally many ids: rows of a table, reshaped and summed.

aten's ``embedding_bag`` states where each bag begins among all ids, which no part of
the bags can follow. A module that is called with a matrix of ids makes bags of one
size, and says so: its offsets are an ``arange``.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

aten = torch.ops.aten

_SUM, _MEAN = 0, 1
_DEFAULTS: tuple[Any, ...] = (None, None, None, False, _SUM, False, None, False, None)


def unify_bags(module: fx.GraphModule) -> None:
    """Replace sums and means over bags of one size, in place; leave other bags."""
    graph = module.graph
    found = graph.find_nodes(op="call_function", target=aten.embedding_bag.padding_idx)
    for node in found:
        given = (*node.args, *_DEFAULTS[len(node.args) :])
        weight, ids, offsets, by_frequency, mode, _, scales, last, padding = given
        size = _bag_size(offsets, ids)
        if size is None or mode not in (_SUM, _MEAN) or last or padding is not None:
            continue
        if any(user.args[1] and user.users for user in node.users):
            continue  # someone looks into the bags
        with graph.inserting_before(node):
            args = (weight, ids, -1, by_frequency)
            rows = graph.call_function(aten.embedding.default, args)
            new = [rows]
            if scales is not None:
                new.append(graph.call_function(aten.unsqueeze.default, (scales, 1)))
                new.append(graph.call_function(aten.mul.Tensor, (rows, new[-1])))
            shape = [-1, size, weight.meta["val"].shape[1]]
            new.append(graph.call_function(aten.reshape.default, (new[-1], shape)))
            join = aten.sum.dim_IntList if mode == _SUM else aten.mean.dim
            new.append(graph.call_function(join, (new[-1], [1])))
        for made in new:
            made.meta = {k: v for k, v in node.meta.items() if k != "val"}
        for user in list(node.users):
            user.replace_all_uses_with(new[-1])
            graph.erase_node(user)
        graph.erase_node(node)
    if found:
        module.recompile()


def _bag_size(offsets: fx.Node, ids: fx.Node) -> int | None:
    """Return the size that all bags have, ``None`` where they may differ."""
    if offsets.target is not aten.arange.start_step:
        return None
    start, end, step = cast("tuple[int, int, int]", (*offsets.args, 1)[:3])
    total = ids.meta["val"].numel()
    return step if start == 0 and end == total and total % step == 0 else None
