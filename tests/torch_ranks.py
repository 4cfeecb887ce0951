"""Ranks that know PyTorch and no Partita, forked from a process that has loaded it."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.tensor"])

START = """\
import importlib.util, os, sys
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, "partita"))]
assert importlib.util.find_spec("partita") is None
import torch, torch.distributed as dist
here, rank, size = os.path.dirname(__file__), *map(int, sys.argv[1:])
sys.path.insert(0, here)
load = lambda name: torch.load(os.path.join(here, name), weights_only=False)
save = lambda found: torch.save(found, os.path.join(here, f"rank{rank}.pt"))
dist.init_process_group("gloo", f"file://{here}/meeting", rank=rank, world_size=size)
"""
"""How a script of a rank begins."""

END = """\
dist.barrier()  # gloo aborts where a peer leaves first
dist.destroy_process_group()
"""
"""How it ends."""


def run_ranks(script: Path, num_ranks: int) -> None:
    """Run a script on so many ranks; its arguments are the rank and their number."""
    ranks = [
        _CONTEXT.Process(target=run_script, args=(str(script), rank, num_ranks))
        for rank in range(num_ranks)
    ]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(timeout=100)
    finally:
        codes = [rank.exitcode for rank in ranks]
        for rank in ranks:
            if rank.is_alive():
                rank.kill()
                rank.join()
    assert codes == [0] * num_ranks


def run_script(script: str, rank: int, num_ranks: int) -> None:
    """Run a script as a rank, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.argv = [script, str(rank), str(num_ranks)]
    runpy.run_path(script, run_name="__main__")
