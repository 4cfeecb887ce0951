"""AutoParallel beside Partita: seconds and memory to a plan of the same model.

    search_peer.py CHECKOUT [--python PYTHON] [--problems "llama:4@4,8 ..."] [--runs N]

CHECKOUT is a clone of https://github.com/meta-pytorch/autoparallel, PYTHON an
interpreter with torch, transformers and pulp. The programs take turns, each in a
process of its own, imports not counted. AutoParallel captures the model up to its
logits; Partita plans a step of training: the loss, its gradients and AdamW too.
AutoParallel asks for the name of a GPU, and is told H100, as in its own tests.
Memory is the peak of the process less what it held when all was imported.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
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


def timed(owner: Any, name: str, label: str, spent: Spent) -> None:
    """Add up the seconds that calls of a function take."""
    plain: Callable[..., Any] = getattr(owner, name)

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            spent[label] = spent.get(label, 0.0) + time.perf_counter() - started

    setattr(owner, name, call)


def with_partita(name: str, layers: int, shape: tuple[int, ...]) -> Spent:
    """Return what Partita takes to plan a step of training."""
    import partita as pt
    from partita import planning

    model, batch = language_model(name, layers), max(16, 2 * math.prod(shape))
    with torch.device("meta"):
        ids = torch.zeros(batch, SEQUENCE, dtype=torch.long)
    spent: Spent = {"imports": peak_gib()}
    timed(planning, "capture", "capture", spent)
    mesh = pt.Mesh(**dict(zip(("dp", "tp"), shape, strict=False)))
    started = time.perf_counter()
    options = pt.Options(hardware="h100-dgx")
    plan = pt.plan(model, input_ids=ids, labels=ids, mesh=mesh, options=options)
    spent["plan"] = time.perf_counter() - started
    assert plan.nodes
    spent["search"] = spent["plan"] - spent["capture"]
    return spent


def with_autoparallel(name: str, layers: int, shape: tuple[int, ...]) -> Spent:
    """Return what AutoParallel takes, with its folding of equal layers."""
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
    spent: Spent = {"imports": peak_gib()}
    timed(api, "build_joint_graph", "capture", spent)
    timed(optimize.ShardingOptimizer, "__init__", "search", spent)
    timed(optimize.ShardingOptimizer, "_solve", "search", spent)
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

    started = time.perf_counter()
    with api.AutoParallel(
        model, inputs, mesh, policy, repeated_subgraphs=True
    ) as planner:
        planner.add_parameter_memory_constraint(low=None, high=None)
        planner.add_input_constraints([rows])
        planner.add_output_constraints([rows])
        planner.optimize_placement()
    spent["plan"] = time.perf_counter() - started
    return spent


def main() -> None:
    """Print seconds and memory of both, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", help="a clone of AutoParallel")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--problems", default=PROBLEMS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--one", choices=("partita", "autoparallel"))
    asked = parser.parse_args()
    if asked.one is None:
        _print_table(asked)
        return
    model, _, mesh = asked.problems.partition("@")
    name, _, layers = model.partition(":")
    shape = tuple(map(int, mesh.split(",")))
    if asked.one == "autoparallel":
        sys.path.insert(0, asked.checkout)
        spent = with_autoparallel(name, int(layers), shape)
    else:
        spent = with_partita(name, int(layers), shape)
    print(json.dumps({**spent, "peak": peak_gib() - spent["imports"]}))


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
        cells = "".join(
            f"{theirs[c]:7.2f}/{ours[c]:5.2f}={theirs[c] / ours[c]:4.1f}"
            for c in columns
        )
        print(f"{problem:16}{cells}", flush=True)


def _run(asked: argparse.Namespace, one: str, problem: str) -> Spent:
    python = asked.python if one == "autoparallel" else sys.executable
    command = [python, __file__, asked.checkout, "--one", one, "--problems", problem]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{one}, {problem}:\n{ended.stderr[-2000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
