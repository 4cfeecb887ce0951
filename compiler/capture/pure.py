"""Trace forward and backward of a module that writes to no tensor it has been given.

AOTAutograd runs the forward once to learn what is written where and what shares memory,
then keeps up both for every op that it traces, which is half of its time. A module that
never writes needs none of it: run once, op by op, it gives the same graph. The trace is
given up at the first op that writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import fx
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from partita.compiler.capture.schemas import writes_in_place
from partita.compiler.capture.torch_private import (
    DispatchMode,
    descriptors,
    keeping_notes,
    note_backward,
    note_modules_of_backward,
    python_dispatcher,
    pytree,
    without_values,
)

_LOSS_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class WritesFound(Exception):
    """An op that writes to a tensor was met."""


def trace_pure(
    module: torch.nn.Module,
    tensors: tuple[torch.Tensor, ...],
    taken_apart: Mapping[Any, Callable[..., Any]],
    train: bool,
) -> fx.GraphModule:
    """Return the graph that ``export_joint`` returns of a module that writes nowhere.

    Args:
        module: returns the loss, if one is asked for, in a dict, and detached outputs.
        tensors: what it is called with.
        taken_apart: the ops that are made of others, and how.
        train: whether there is to be a backward.

    Raises:
        WritesFound: where it does write.
        Exception: any, where the module cannot be traced.
    """
    step = _Step(module, tensors, train)
    with (
        torch.random.fork_rng(devices=()),
        torch.autograd.set_multithreading_enabled(False),
        warnings.catch_warnings(),
        step.mode,
        python_dispatcher(),
    ):
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled.")
        warnings.filterwarnings("ignore", "Error detected in")  # a write, in general
        with torch.autograd.detect_anomaly(check_nan=False):
            joint = make_fx(step.run, dict(taken_apart))(*step.inputs)
    step.describe(joint.graph)
    note_modules_of_backward(joint)
    joint.graph.eliminate_dead_code()
    return joint


class _NoWrites(DispatchMode):
    """Within it an op that writes ends the trace."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``."""
        if writes_in_place(func):
            raise WritesFound(str(func))
        return func(*args, **(kwargs or {}))


class _Step:
    """Forward and backward of a module as a function of all the tensors they use."""

    def __init__(
        self, module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], train: bool
    ) -> None:
        """Take note of what the function takes, in order."""
        self._module = module
        parameters = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        self._names = (*parameters, *buffers)
        self._given: list[Any] = [
            *map(descriptors.ParamAOTInput, parameters),
            *map(descriptors.BufferAOTInput, buffers),
            *map(descriptors.PlainAOTInput, range(len(tensors))),
        ]
        self._returned: list[Any] = []
        own = (*parameters.values(), *buffers.values())
        self.mode, self.inputs = without_values((*own, *tensors))
        with self.mode:  # one is the loss's scale, as the forward will tell
            scales = [torch.ones((), dtype=dtype) for dtype in _LOSS_DTYPES * train]
        self.inputs += scales

    def run(self, *flat: torch.Tensor) -> list[torch.Tensor | None]:
        """Return what the module does, then the gradient of each thing given."""
        given, scales = flat[: len(self._given)], flat[len(self._given) :]
        own = dict(zip(self._names, given, strict=False))
        with _NoWrites():
            called = functional_call(self._module, own, given[len(own) :])
            plain: list[torch.Tensor] = pytree.tree_leaves(called)
            self._returned = [*map(descriptors.PlainAOTOutput, range(len(plain)))]
            gradients = self._gradients(plain[0], given, scales) if scales else []
        return [*plain, *gradients]

    def _gradients(
        self,
        loss: torch.Tensor,
        given: tuple[torch.Tensor, ...],
        scales: tuple[torch.Tensor, ...],
    ) -> list[torch.Tensor | None]:
        """Return a gradient for each tensor that is trained, and note what it is."""
        trained = [i for i, tensor in enumerate(given) if tensor.requires_grad]
        if not trained or not loss.requires_grad:
            return []
        scale = _LOSS_DTYPES.index(loss.dtype)
        self._given += [None] * len(_LOSS_DTYPES)
        self._given[len(given) + scale] = descriptors.TangentAOTInput(self._returned[0])
        self._returned += [descriptors.GradAOTOutput(self._given[i]) for i in trained]
        with keeping_notes():
            note_backward(loss)
            gradients = torch.autograd.grad(
                loss,
                [given[i] for i in trained],
                grad_outputs=scales[scale],
                allow_unused=True,
            )
        return list(gradients)

    def describe(self, graph: fx.Graph) -> None:
        """Note in the traced graph what it takes and returns."""
        for node, desc in zip_longest(graph.find_nodes(op="placeholder"), self._given):
            if desc is None:
                graph.erase_node(node)
            else:
                node.meta["desc"] = desc
        (output,) = graph.find_nodes(op="output")
        output.meta["desc"] = self._returned
