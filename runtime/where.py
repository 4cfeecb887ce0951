"""Where a program raised: the op, and the line of the user that it comes from."""

from __future__ import annotations

from traceback import walk_tb

import torch
from torch import fx

from partita.compiler.ir.program import has_info, info


def say_where(error: BaseException, module: torch.nn.Module) -> None:
    """Add to ``error``, raised in the forward of ``module``, which node it was at.

    Of a program that was compiled there are no nodes to tell, and nothing is added.
    """
    if not isinstance(module, fx.GraphModule):
        return
    code = module.forward.__code__
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_code is code:
            node = _node_at(module, line)
            if node is not None and has_info(node):
                fact = info(node)
                source = f" ({fact.source})" if fact.source else ""
                error.add_note(f"at {fact.key!r}{source}, {fact.phase}")
            return


def _node_at(module: fx.GraphModule, line: int) -> fx.Node | None:
    """Return the node whose statement stands at a line of a module's generated code.

    Of all names of a statement the node's own is the first; a result that nobody uses
    is assigned all the same.
    """
    first = module.forward.__code__.co_firstlineno
    text = module.code.lstrip("\n").splitlines()
    start = next(at for at, row in enumerate(text) if row.startswith("def forward"))
    at = start + line - first
    if not 0 <= at < len(text):
        return None
    name = text[at].strip().split(" ")[0].rstrip(":")
    return next((node for node in module.graph.nodes if node.name == name), None)
