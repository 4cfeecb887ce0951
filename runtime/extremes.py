"""The maximum and the minimum of ranks, in which NaN counts as it does in torch.

gloo compares numbers, and whether a NaN is lost depends on which rank has it. So what
is compared are integers in the order of the floats that they stand for, NaN beyond all:
the same messages, of as many bytes. gloo compares no integers of 16 bits, so programs
send half precision as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from partita.compiler.ir.program import has_info, info, set_info, update_info
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.collectives import is_wait

c10d = torch.ops._c10d_functional

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_REDUCING = (
    c10d.all_reduce.default,
    c10d.all_reduce_.default,
    c10d.reduce_scatter_tensor.default,
)
_EXTREMES = ("max", "min")


def over_ranks(x: Tensor, reduction: str, join: Callable[[Tensor], object]) -> Tensor:
    """Return ``x`` joined in place by ``join``, where it is a maximum or a minimum.

    Half precision is joined in single.
    """
    if not x.is_floating_point() or reduction not in _EXTREMES:
        joined = x.clone()
        join(joined)
        return joined
    wide = x if x.dtype in _INTEGERS else x.float()
    ordered = _ordered(wide, reduction)
    join(ordered)
    return _floats(ordered, wide.dtype).to(x.dtype)


def keep_nan(graph: fx.Graph) -> None:
    """Have one rank's program, that runs on a CPU, lose no NaN to gloo."""
    for call in graph.nodes:
        if call.target not in _REDUCING or call.args[1] not in _EXTREMES:
            continue
        if not has_info(call):  # a message alone, to be measured
            continue
        (type_,) = info(call).types
        if type_ is None or type_.dtype not in _INTEGERS:
            continue
        if all(is_wait(user) for user in call.users):
            _compare_integers(graph, call, type_)


def _compare_integers(graph: fx.Graph, call: fx.Node, type_: TensorType) -> None:
    """Have a collective compare integers, which are floats again behind the waits."""
    given, reduction, *others = call.args
    assert isinstance(given, fx.Node)
    sent = replace(type_, dtype=_INTEGERS[type_.dtype])
    order = _traced(_ordered, type_.dtype, str(reduction))
    floats = _traced(_floats, sent.dtype, type_.dtype)
    with graph.inserting_before(call):
        call.args = (_written(graph, order, given), reduction, *others)
    update_info(call, types=(sent,))
    for wait in list(call.users):
        users = list(wait.users)
        with graph.inserting_before(wait.next):
            came = _written(graph, floats, wait)
        set_info(came, info(wait))
        update_info(wait, types=(sent,))
        for user in users:
            user.replace_input_with(wait, came)


@cache
def _traced(
    function: Callable[[Tensor, Any], Tensor], dtype: torch.dtype, how: object
) -> fx.Graph:
    """Return the ops of a function of a tensor of whatever shape."""

    def of_tensor(x: Tensor) -> Tensor:
        return function(x, how)

    return make_fx(of_tensor)(torch.empty((), dtype=dtype)).graph


def _written(graph: fx.Graph, own: fx.Graph, x: fx.Node) -> fx.Node:
    """Write ``own`` of ``x`` into a graph; return what it makes."""
    (entering,) = own.find_nodes(op="placeholder")
    made = graph.graph_copy(own, {entering: x})
    assert isinstance(made, fx.Node)
    return made


def _ordered(x: Tensor, reduction: str) -> Tensor:
    """Return integers in the order of the floats ``x``."""
    dtype = _INTEGERS[x.dtype]
    limits = torch.iinfo(dtype)
    beyond = limits.max if reduction == "max" else limits.min
    bits = x.clone(memory_format=torch.contiguous_format).view(dtype)
    return _turned(bits).masked_fill(x.isnan(), beyond)


def _floats(ordered: Tensor, dtype: torch.dtype) -> Tensor:
    return _turned(ordered).view(dtype)


def _turned(bits: Tensor) -> Tensor:
    """Return the bits of floats as integers of their order, or these as bits again.

    Of negative ones, the larger the bits, the smaller the float.
    """
    limits = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> (limits.bits - 1)) & limits.max)
