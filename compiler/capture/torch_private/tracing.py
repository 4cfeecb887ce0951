"""Tracing forward and backward of a module as one graph, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._C import (
    _get_mkldnn_enabled,  # pyright: ignore[reportPrivateUsage]
    _set_mkldnn_enabled,  # pyright: ignore[reportPrivateUsage]
)
from torch._decomp import decompositions, get_decompositions
from torch._higher_order_ops import effects
from torch.fx import graph as fx_graph
from torch.fx import traceback as fx_traceback
from torch.fx._lazy_graph_module import (
    _LazyGraphModule,  # pyright: ignore[reportPrivateUsage]
    _use_lazy_graph_module,  # pyright: ignore[reportPrivateUsage]
)
from torch.utils import checkpoint

from partita.compiler.capture.spelling import spell_attribute


@contextmanager
def _seen_as_export() -> Generator[None]:
    """Within it models that ask whether they are being exported are told so.

    They then leave out what depends on values, such as a warning about padding.
    """
    flags = dict.fromkeys(("_is_compiling_flag", "_is_exporting_flag"), True)
    with patch.multiple(torch.compiler, **flags):
        yield


def export_joint(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    decompose: Iterable[Any],
    own: Mapping[Any, Callable[..., Any]],
) -> fx.GraphModule:
    """Trace forward and backward of ``module`` into one functional aten graph.

    Placeholders and the output node carry AOTAutograd's descriptors in
    ``meta["desc"]``: which parameter, input, tangent or gradient they are. Ops in
    ``decompose`` are taken apart by torch's own functions, those in ``own`` by these.
    Where gradients are switched off there is no backward.
    """
    # Brings Dynamo, which takes half of the time of importing all of Partita.
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    table: dict[Any, Callable[..., Any]] = get_decompositions(list(decompose))
    table.update(own)
    with ExitStack() as stack:
        if not isinstance(module, fx.GraphModule):
            stack.enter_context(_seen_as_export())
        joint = aot_export_joint_with_descriptors(
            stack, module, inputs, decompositions=table
        )
        return joint.graph_module


keeping_notes = fx_traceback.preserve_node_meta
"""Returns a block in which a trace puts its notes into each node."""


notes_of_trace = fx_traceback.get_current_meta
"""Returns these notes, which may be changed."""


def uncompiled(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Return a module of ``graph`` whose Python code is made when it is asked for."""
    return _LazyGraphModule(root, graph)


def without_code() -> AbstractContextManager[None]:
    """Return a block in which torch makes the code of graphs when it is asked for.

    A trace makes many graphs that are read but never run.
    """
    return _use_lazy_graph_module(True)


@contextmanager
def any_name() -> Generator[None]:
    """Within it the code of graphs names modules and tensors whatever they are called.

    Torch writes Python's keywords behind a dot, and quotes other names as they are.
    """
    with patch.object(fx_graph, "_format_target", spell_attribute):
        yield


@contextmanager
def without_mkldnn() -> Generator[None]:
    """Within it recurrent layers are ordinary ops, not one op that only CPUs have."""
    enabled = _get_mkldnn_enabled()
    _set_mkldnn_enabled(False)
    try:
        yield
    finally:
        _set_mkldnn_enabled(enabled)


def around_checkpoints(
    stand_in: Callable[..., Generator[None]],
) -> AbstractContextManager[object]:
    """Return within what ``stand_in`` is around checkpoints that are not reentrant."""
    return patch.object(checkpoint, "_checkpoint_without_reentrant_generator", stand_in)


def around_recurrent_layers(
    stand_in: Callable[..., Callable[..., Any]],
) -> AbstractContextManager[object]:
    """Return within what the function is that takes recurrent layers apart.

    ``stand_in`` is given torch's own.
    """
    name = "_rnn_helper"
    return patch.object(decompositions, name, stand_in(vars(decompositions)[name]))


def without_order(unordered: Any) -> AbstractContextManager[object]:
    """Return a block in which traces keep no order among calls of an op."""
    has_effects = effects.has_effects

    def is_ordered(op: Any, *others: Any) -> bool:  # some releases give more
        return op is not unordered and has_effects(op, *others)

    return patch.object(effects, has_effects.__name__, is_ordered)
