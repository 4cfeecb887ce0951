"""Send masks as bytes in a program that is compiled as a whole.

Inductor reads the operands of a collective like those of arithmetic, the size of the
group among them: beside that number booleans become integers of 64 bits. These would be
sent, eight times the bytes, and taken for booleans. Bytes stay bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx

from partita.compiler.capture.torch_private import FakeMode
from partita.runtime.collectives import is_wait
from partita.runtime.flat_graph import note_types

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

_WITH_SIZE = c10d.all_gather_into_tensor.default, c10d.reduce_scatter_tensor.default
"""The collectives that are called with the size of their group."""


def send_masks_as_bytes(
    module: fx.GraphModule, inputs: Sequence[Tensor], mode: FakeMode
) -> None:
    """Have a graph send bytes in the place of booleans, which it makes of them again.

    What a mask is reduced by is so for bytes, too: they are 0 or 1.

    Args:
        module: a graph of ops on tensors alone; it is changed.
        inputs: of ``mode``.
        mode: in which tensors have no values.
    """
    graph = module.graph
    calls = [node for node in graph.nodes if node.target in _WITH_SIZE]
    if not calls:
        return
    note_types(module, inputs, mode)
    for node in calls:
        mask, *others = node.args
        if mask.meta["val"].dtype is not torch.bool:
            continue
        with graph.inserting_before(node):
            sent = graph.call_function(
                aten._to_copy.default, (mask,), {"dtype": torch.uint8}
            )
        node.args = (sent, *others)
        for wait in [*_waits(node)]:
            with graph.inserting_after(wait):
                came = graph.call_function(aten.ne.Scalar, (wait, 0))
            wait.replace_all_uses_with(came, lambda user, came=came: user is not came)
    graph.lint()
    module.recompile()


def _waits(node: fx.Node) -> Iterator[fx.Node]:
    """Yield who waits for what a node makes, or for a view of that."""
    for user in node.users:
        if is_wait(user):
            yield user
        else:
            yield from _waits(user)
