"""All-gathers on the CPU go by a name that gloo's threads may write at once.

A group of gloo has two threads. Behind each collective they write its name to one
string of the group, and hold no lock (``ProcessGroupGloo::runLoop`` in torch 2.11 to
2.13). Up to 15 characters lie in that string itself. A longer name is memory of its
own, which one thread frees while the other writes into it: now and then the heap is
corrupt, and a rank dies anywhere. Of what programs call, functional all-gathers alone
have such a name, ALLGATHER_COALESCED. They are carried out as ALLGATHER, in the same
messages.
"""

from __future__ import annotations

from functools import cache

import torch

from partita.compiler.capture.torch_private import begin_gather


@cache
def name_gathers_shortly() -> torch.library.Library:
    """Have functional all-gathers on the CPU, of whomever, be ALLGATHER."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("all_gather_into_tensor", _all_gather, "CPU")
    return library


def _all_gather(x: torch.Tensor, group_size: int, group_name: str) -> torch.Tensor:
    gathered = x.new_empty((group_size * x.shape[0], *x.shape[1:]))
    begin_gather(x.contiguous(), gathered, group_name)
    return gathered
