"""AutoParallel beside Partita: seconds and memory to a plan of the same model.

    search_peer.py CHECKOUT [--python PYTHON] [--problems "llama:4@4,8 ..."] [--runs N]
        [--limit SECONDS]

CHECKOUT is a clone of https://github.com/meta-pytorch/autoparallel, PYTHON an
interpreter with torch, transformers and pulp. The programs take turns, each in a
process of its own, imports not counted. AutoParallel captures the model up to its
logits; Partita plans a step of training: the loss, its gradients and AdamW too.
AutoParallel asks for the name of a GPU, and is told H100, as in its own tests.
Memory is the peak of the process less what it held when all was imported. Where
AutoParallel is still at it after SECONDS it is ended: its figures are what it had taken
by then, and are marked with ``>``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Spent = dict[str, float]

PROBLEMS = "llama:4@4,8 llama:8@4,8 llama:32@4,8 gpt2:12@4,8 llama:8@8 llama:32@8"
SEQUENCE = 128


class Logits(nn.Module):
    """A language model of which the logits alone are asked for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of token ids [batch, sequence]."""
        return self.model(ids).logits


def language_model(name: str, layers: int) -> nn.Module:
    """Return a model of ``transformers``, on the meta device."""
    if name == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=layers, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False
        )
        made: Any = transformers.GPT2LMHeadModel
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=256,
            intermediate_size=1024,
            num_attention_heads=8,
            num_key_value_heads=8,
            vocab_size=1024,
            use_cache=False,
        )
        made = transformers.LlamaForCausalLM
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return made(config)


def _told(told: object, *args: object) -> object:
    return told


def peak_gib() -> float:
    """Return the most memory that this process had, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Timer:
    """Seconds by label, told when all is done or when the time is up.

    Args:
        limit_s: seconds from ``start`` until this process and its children are ended.
    """

    def __init__(self, limit_s: float) -> None:
        self._imports_gib = 0.0
        self._limit_s = limit_s
        self._spent: Spent = {}
        self._running: Spent = {}

    def start(self) -> None:
        """Start the plan's time; what the process holds now counts as imports."""
        self._imports_gib = peak_gib()
        self._running["plan"] = time.perf_counter()
        self._ending = threading.Timer(self._limit_s, self._end)
        self._ending.daemon = True
        self._ending.start()

    def stop(self) -> Spent:
        """Return what the plan took, see ``spent``."""
        self._ending.cancel()
        return self.spent()

    def time(self, owner: Any, name: str, label: str) -> None:
        """Add up the seconds that calls of a function take."""
        plain: Callable[..., Any] = getattr(owner, name)

        @wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_inner = label in self._running
            self._running.setdefault(label, time.perf_counter())
            try:
                return plain(*args, **kwargs)
            finally:
                if not is_inner:
                    self._spent[label] = self._at(time.perf_counter(), label)
                    del self._running[label]

        setattr(owner, name, call)

    def spent(self) -> Spent:
        """Return seconds by label up to now, and the GiB that the plan took.

        What is not capture is search, unless calls of a search were timed.
        """
        now = time.perf_counter()
        labels = {"capture", "plan", *self._spent, *self._running}
        seconds = {label: self._at(now, label) for label in labels}
        search_s = seconds["plan"] - seconds["capture"]
        peak = peak_gib() - self._imports_gib
        return {"search": search_s, **seconds, "peak": peak}

    def _at(self, now: float, label: str) -> float:
        return self._spent.get(label, 0.0) + now - self._running.get(label, now)

    def _end(self) -> None:
        print(json.dumps({**self.spent(), "ended": 1.0}), flush=True)
        os.killpg(0, signal.SIGKILL)


def with_partita(name: str, layers: int, shape: tuple[int, ...], timer: Timer) -> None:
    """Time how Partita plans a step of training."""
    import partita as pt
    from partita import planning

    model, batch = language_model(name, layers), max(16, 2 * math.prod(shape))
    with torch.device("meta"):
        ids = torch.zeros(batch, SEQUENCE, dtype=torch.long)
    timer.time(planning, "capture", "capture")
    mesh = pt.Mesh(**dict(zip(("dp", "tp"), shape, strict=False)))
    options = pt.Options(hardware="h100-dgx")
    timer.start()
    plan = pt.plan(model, input_ids=ids, labels=ids, mesh=mesh, options=options)
    assert plan.nodes


def with_autoparallel(
    name: str, layers: int, shape: tuple[int, ...], timer: Timer
) -> None:
    """Time AutoParallel, with its folding of equal layers."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.distributed.tensor.placement_types import Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    cpu: Any = torch.cpu
    cuda: Any = torch.cuda
    cpu.get_device_name = cuda.get_device_name = partial(_told, "H100")
    cuda.get_device_capability = partial(_told, (9, 0))
    cuda.device_count = partial(_told, 8)
    api: Any = import_module("autoparallel.api")
    optimize: Any = import_module("autoparallel.optimize_sharding")

    model, batch = Logits(language_model(name, layers)), max(16, 2 * math.prod(shape))
    timer.time(api, "build_joint_graph", "capture")
    timer.time(optimize.ShardingOptimizer, "__init__", "search")
    timer.time(optimize.ShardingOptimizer, "_solve", "search")
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=math.prod(shape)
    )
    names = ("dp", "tp")[: len(shape)]
    mesh = torch.distributed.device_mesh.init_device_mesh(
        "cpu", shape, mesh_dim_names=names
    )
    rows = (Shard(0),) + (Replicate(),) * (len(shape) - 1)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )

    def inputs() -> tuple[Tensor]:
        return (torch.zeros(batch, SEQUENCE, dtype=torch.long),)

    timer.start()
    with api.AutoParallel(
        model, inputs, mesh, policy, repeated_subgraphs=True
    ) as planner:
        planner.add_parameter_memory_constraint(low=None, high=None)
        planner.add_input_constraints([rows])
        planner.add_output_constraints([rows])
        planner.optimize_placement()


def main() -> None:
    """Print seconds and memory of both, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", help="a clone of AutoParallel")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--problems", default=PROBLEMS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=86400, metavar="SECONDS")
    parser.add_argument("--one", choices=("partita", "autoparallel"))
    asked = parser.parse_args()
    if asked.one is None:
        _print_table(asked)
        return
    model, _, mesh = asked.problems.partition("@")
    name, _, layers = model.partition(":")
    shape = tuple(map(int, mesh.split(",")))
    timer = Timer(asked.limit)
    if asked.one == "autoparallel":
        sys.path.insert(0, asked.checkout)
        with_autoparallel(name, int(layers), shape, timer)
    else:
        with_partita(name, int(layers), shape, timer)
    print(json.dumps(timer.stop()))


def _print_table(asked: argparse.Namespace) -> None:
    columns = ("capture", "search", "plan", "peak")
    heads = "".join(f"{column:>18}" for column in columns)
    print(f"{'AutoParallel / Partita':16}{heads}  (s, s, s, GiB)")
    for problem in asked.problems.split():
        found: dict[str, list[Spent]] = {"autoparallel": [], "partita": []}
        for _ in range(asked.runs):
            for one, runs in found.items():
                runs.append(_run(asked, one, problem))
        theirs, ours = (
            {column: median(run[column] for run in runs) for column in columns}
            for runs in found.values()
        )
        mark = ">" if any("ended" in run for run in found["autoparallel"]) else "="
        cells = "".join(
            f"{theirs[c]:7.2f}/{ours[c]:5.2f}{mark}{theirs[c] / ours[c]:4.1f}"
            for c in columns
        )
        print(f"{problem:16}{cells}", flush=True)


def _run(asked: argparse.Namespace, one: str, problem: str) -> Spent:
    python = asked.python if one == "autoparallel" else sys.executable
    command = [python, __file__, asked.checkout, "--one", one, "--problems", problem]
    if one == "autoparallel":
        command += ["--limit", str(asked.limit)]
    ended = subprocess.run(
        command, capture_output=True, text=True, start_new_session=True
    )
    *_, last = ["", *ended.stdout.splitlines()]
    spent: Spent = json.loads(last) if last.startswith("{") else {}
    if not spent or (ended.returncode and "ended" not in spent):
        raise SystemExit(f"{one}, {problem}:\n{ended.stderr[-2000:]}")
    return spent


if __name__ == "__main__":
    main()
