"""The training runs of publications: how each was laid out, and seconds of its step.

What a publication leaves out is taken from its text: in Megatron-LM's paper all runs
recompute all activations but where figure 17 says otherwise, and their FLOP/s count
that (arXiv:2104.04473, section 5, equation 3). Rows that Partita cannot express, or
that leave out what decides their time, are left out; ``read`` says how many.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.models import Shape
from benchmarks.fidelity.system import MEGATRON_3, System

Config = Mapping[str, Any]

SELENE = "a100-80gb-selene"
JEAN_ZAY = "a100-80gb-jean-zay"

MEGATRON_DEEPSPEED = System(
    issue_s=25e-6,
    is_blocking=True,
    sends_alone=True,
    receives_alone=True,
    splits_sends=True,
)
"""Megatron-DeepSpeed as BLOOM's layouts were tried: with CUDA_LAUNCH_BLOCKING=1.

Chronicles of the prequel, "dealing with JZ hanging on the large model" and "Hanging
Issue": without it the model hung on 320 GPUs. Stages send and receive one after
another, of what tensor-parallel ranks hold alike each its part (DeepSpeed,
runtime/pipe/engine.py: _exec_schedule, PartitionedTensor). What the host takes for an
op: as for Nanotron (sweep.py).
"""

_IN_BF16 = ("Rebalancing layers",)
"""Tables of BLOOM's that the bfloat16 optimizer ran, which adds up in f32."""

_GPT = {  # layers, hidden, heads
    "22B": (48, 6144, 64),
    "145B": (80, 12288, 96),
    "174.6B": (96, 12288, 96),
    "175B": (96, 12288, 96),
    "530B": (105, 20480, 128),
    "1T": (128, 25600, 160),
}


@dataclass(frozen=True)
class Run:
    """A published run."""

    source: str
    table: str
    layout: Layout
    seconds: float


class Untold(ValueError):
    """A row that does not say what decides its time."""


def read(path: Path) -> tuple[list[Run], int]:
    """Return the runs that can be expressed, and the number of those that cannot."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    runs: list[Run] = []
    left_out = 0
    for row in rows:
        for name, reader in _READERS.items():
            if row["source"].startswith(name) and row["metric"] in _METRICS:
                try:
                    runs.append(reader(row))
                except (KeyError, TypeError, ValueError):
                    left_out += 1
    return runs, left_out


_METRICS = ("achieved_tflops_per_gpu", "throughput", "iteration_time")


def _gpt(config: Config, vocabulary: int = 51200, sequence: int = 2048) -> Shape:
    if "hidden" in config and "layers" in config:
        layers, hidden, heads = (int(config[k]) for k in ("layers", "hidden", "heads"))
    else:
        layers, hidden, heads = _GPT[config["model"]]
    return Shape(layers, hidden, heads, sequence, vocabulary, 4 * hidden, dropout=0.1)


def _flops(shape: Shape, batch: int) -> float:
    """Return the FLOP of a step: arXiv:2104.04473, equation 3."""
    s, l, h, v = shape.sequence, shape.layers, shape.hidden, shape.vocabulary  # noqa: E741
    return 96 * batch * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h))


def _megatron(row: Config) -> Run:
    config = dict(row["config"])
    if row["table"] == "Fig 7" or config.get("scatter_gather") is False:
        raise Untold(row["table"])
    if "scheme" in config:  # table 2
        if not config["scheme"].startswith("PTD"):
            raise Untold(config["scheme"])
        config |= {"tp": 8, "pp": 12}
    if "layers_per_stage" in config:  # figure 11
        config["layers"] = config["layers_per_stage"] * config["pp"]
    pp, tp = int(config["pp"]), int(config["tp"])
    ranks = int(config.get("gpus", pp * tp))
    virtual = int(config.get("virtual_stages", 1))
    if row["table"] == "Fig 18":
        virtual = 4  # as in figure 12, which has the same model and ranks
    shape = _gpt(config)
    layout = Layout(
        shape,
        SELENE,
        pp,
        ranks // (pp * tp),
        tp,
        int(config.get("micro_batch", 1)),
        int(config["global_batch"]),
        virtual,
        "interleaved" if virtual > 1 else "1f1b",
        "full" if config.get("recompute", True) else "none",
    )
    if row["metric"] == "throughput":  # sequences a second
        seconds = layout.batch / row["value"]
    else:
        seconds = _flops(shape, layout.batch) / (row["value"] * 1e12 * ranks)
    return Run("Megatron-LM", row["table"], layout, seconds)


def _korthikanti(row: Config) -> Run:
    config = row["config"]
    virtual = int(config.get("virtual_stages", 3))  # 3 for 530B, in its table
    layout = Layout(
        _gpt(config),
        SELENE,
        int(config["pp"]),
        int(config["dp"]),
        int(config["tp"]),
        int(config.get("micro_batch", 1)),
        int(config["global_batch"]),
        virtual,
        "interleaved" if virtual > 1 else "1f1b",
        config["recompute"],
        is_sequence_parallel=bool(config["sequence_parallel"]),
        system=MEGATRON_3,
    )
    return Run("Korthikanti", row["table"], layout, float(row["value"]))


_SCHEDULES = {"1F1B": "1f1b", "ZB-1p": "zero-bubble"}


def _zero_bubble(row: Config) -> Run:
    """Read a run without data or tensor parallelism; the ends have a layer less."""
    config = row["config"]
    pp, micro = int(config["pp"]), int(config["micro_batch"])
    count = int(config["num_microbatches"])
    tp = int(config.get("tp", 1))
    shape = _gpt(config, sequence=int(config["seq"]))
    layout = Layout(
        shape,
        SELENE,
        pp,
        1,
        tp,
        micro,
        micro * count,
        1,
        _SCHEDULES[config["schedule"]],
        sizes=_with_light_ends(shape.layers, pp),
        system=System(),  # its sends pass beside what is computed
    )
    seconds = layout.batch / (row["value"] * layout.ranks)  # samples a second and rank
    return Run("Zero Bubble", row["table"], layout, seconds)


def _with_light_ends(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers by stage where the first and the last have one less."""
    each, rest = divmod(layers + 2, stages)
    if rest:
        raise Untold(f"{layers} layers on {stages} stages")
    return (each - 1, *[each] * (stages - 2), each - 1)


def _filled(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers by stage as DeepSpeed deals them out: the last has the rest.

    Chronicles of the prequel, "Re-do": 78 on 12 stages are 11 times 7, and 1.
    """
    each = -(-layers // stages)
    return tuple(max(0, min(each, layers - each * n)) for n in range(stages))


def _bloom(row: Config) -> Run:
    if row["metric"] != "iteration_time":
        raise Untold(row["metric"])
    config = dict(row["config"])
    config["heads"] = config["nheads"]
    shape = _gpt(config, int(config["vocab"]))
    pp = int(config["pp"])
    is_light = shape.layers % pp and not (shape.layers + 2) % pp
    layout = Layout(
        shape,
        JEAN_ZAY,
        pp,
        int(config["dp"]),
        int(config["tp"]),
        int(config["mbs"]),
        int(config["gbs"]),
        recompute="full",
        zero=1,
        sizes=(_with_light_ends if is_light else _filled)(shape.layers, pp),
        system=replace(MEGATRON_DEEPSPEED, sums_in_f32=row["table"] in _IN_BF16),
    )
    if layout.ranks != 8 * int(config["nodes"]):
        raise Untold(f"{layout.ranks} ranks on {config['nodes']} nodes")
    if layout.microbatches < 1:
        raise Untold("uneven microbatches")
    return Run("BLOOM", row["table"], layout, float(row["value"]))


_READERS: dict[str, Callable[[Config], Run]] = {
    "Megatron-LM SC'21": _megatron,
    "Korthikanti": _korthikanti,
    "Zero Bubble": _zero_bubble,
    "BigScience BLOOM": _bloom,
}


def by_source(runs: list[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Yield the runs of each publication."""
    for source in dict.fromkeys(run.source for run in runs):
        yield source, [run for run in runs if run.source == source]
