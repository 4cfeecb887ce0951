"""Put the one attention op where torch's stands in an exported module."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from partita.compiler.capture import attention  # defines the op

aten = torch.ops.aten


def unify_attention(module: fx.GraphModule, dtype: torch.dtype | None = None) -> None:
    """Replace scaled_dot_product_attention by the device-neutral op, in place.

    It stays as it is, to be decomposed by torch, where a mask needs a gradient (a
    learned position bias) or scores are dropped at random. ``dtype`` is what autocast
    would cast what it is given to.
    """
    graph = module.graph
    learned = _of_parameters(module)
    found = graph.find_nodes(
        op="call_function", target=aten.scaled_dot_product_attention.default
    )
    for node in found:
        query, key, value, mask, dropout, causal, scale = _attention_arguments(node)
        rank4 = all(n.meta["val"].ndim == 4 for n in (query, key, value))
        if dropout or (mask is not None and mask in learned) or not rank4:
            continue
        if scale is None:
            scale = 1.0 / math.sqrt(query.meta["val"].shape[-1])
        with graph.inserting_before(node):
            given = (*_broadcast(query, key, value), _of_four_dims(mask))
            tensors = [_in_dtype(x, dtype) for x in given]
            new = graph.call_function(
                torch.ops.partita.attention.default, (*tensors, causal, scale)
            )
            new.meta = {k: v for k, v in node.meta.items() if k != "val"}
            first = graph.call_function(operator.getitem, (new, 0))
            first.meta = dict(node.meta)
        node.replace_all_uses_with(first)
        graph.erase_node(node)
    if found:
        # Torch's kernels lay out what they make in other ways; a view of it may be none
        # of what the op makes.
        for view in graph.find_nodes(op="call_function", target=aten.view.default):
            view.target = aten.reshape.default
        module.recompile()


def _in_dtype(node: fx.Node | None, dtype: torch.dtype | None) -> fx.Node | None:
    """Return ``node`` as autocast hands it on: floats but doubles in ``dtype``."""
    if node is None or dtype is None:
        return node
    found = node.meta["val"].dtype
    if not found.is_floating_point or found in (dtype, torch.float64):
        return node
    cast = node.graph.call_function(aten.to.dtype, (node, dtype))
    cast.meta = {k: v for k, v in node.meta.items() if k != "val"}
    return cast


def _broadcast(*operands: fx.Node) -> tuple[fx.Node, ...]:
    """Return query, key and value, expanded where torch itself broadcasts them."""
    query, key, value = (node.meta["val"].shape for node in operands)
    shapes = attention.broadcast(query, key, value)
    return tuple(map(_expanded, operands, shapes))


def _expanded(node: fx.Node, shape: tuple[int, ...]) -> fx.Node:
    if node.meta["val"].shape == shape:
        return node
    view = node.graph.call_function(aten.expand.default, (node, shape))
    view.meta = {**node.meta, "val": node.meta["val"].expand(shape)}
    return view


def _of_four_dims(mask: fx.Node | None) -> fx.Node | None:
    """Return a mask, with a dim more where it has three: kernels take two or four."""
    if mask is None or mask.meta["val"].ndim != 3:
        return mask
    view = mask.graph.call_function(aten.unsqueeze.default, (mask, 0))
    view.meta = {**mask.meta, "val": mask.meta["val"].unsqueeze(0)}
    return view


def _attention_arguments(node: fx.Node) -> tuple[Any, ...]:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    defaults = (None, None, None, None, 0.0, False, None)
    found: dict[str, Any] = dict(zip(names, defaults, strict=True))
    found.update(zip(names, node.args, strict=False))
    found.update({name: value for name, value in node.kwargs.items() if name in names})
    return tuple(found[name] for name in names)


def _of_parameters(module: fx.GraphModule) -> set[fx.Node]:
    """Return what may need a gradient: all that is made of parameters to be trained.

    What was detached does not, nor what has no gradient, as a comparison.
    """
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        is_trained = node.op == "get_attr" and node.target in trained
        if is_trained or any(n in found for n in node.all_input_nodes):
            if node.target is not aten.detach.default and _may_have_gradient(node):
                found.add(node)
    return found


def _may_have_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):  # a call of several results, an attribute
        return True
    return value.is_floating_point() or value.is_complex()
