"""What a graph holds while it runs, found by running it on tensors without values.

Torch's own kernels for meta tensors say what is a view and how large storages are;
fx's rule says when a value is let go: after the node that uses it last, at once where
there is none. Workspace inside of kernels and collectives is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef


class _Recorder(fx.Interpreter):
    """Notes after every node what storages its values lie in."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.live: list[tuple[fx.Node, int]] = []
        self.outside: set[int] = set()

    def run_node(self, n: fx.Node) -> Any:
        if n.target is torch.ops._c10d_functional.wait_tensor.default:
            (waited,), _ = self.fetch_args_kwargs_from_env(n)
            result = waited  # on meta tensors it copies
        else:
            result = super().run_node(n)
        if n.op == "call_function":
            sizes: dict[int, int] = {}
            used = (value for node, value in self.env.items() if node.users)
            for value in (*used, result):
                for part in value if isinstance(value, tuple | list) else (value,):
                    if isinstance(part, torch.Tensor):
                        storage = part.untyped_storage()
                        sizes[StorageWeakRef(storage).cdata] = storage.nbytes()
            held = sum(size for key, size in sizes.items() if key not in self.outside)
            self.live.append((n, held))
        return result


def live_bytes(
    module: fx.GraphModule, arguments: Sequence[torch.Tensor | int]
) -> list[tuple[fx.Node, int]]:
    """Return the bytes held at each call, arguments left out."""
    recorder = _Recorder(module)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    owners = (StorageWeakRef(x.untyped_storage()) for x in tensors)
    recorder.outside = {owner.cdata for owner in owners}
    recorder.run(*arguments)
    return recorder.live
