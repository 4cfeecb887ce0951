"""What is exported for other frameworks is loaded by their own classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compiler.export.test_strategy import WAYS, planned

from partita.compiler.export.deepspeed import write_deepspeed
from partita.compiler.export.megatron import write_megatron
from partita.compiler.export.strategy import Strategy, Use
from partita.compiler.export.torchtitan import write_torchtitan
from partita.compiler.plan.plan import Plan

WRITES = {
    "torchtitan": write_torchtitan,
    "megatron": write_megatron,
    "deepspeed": write_deepspeed,
}
NEEDED = "wheel setuptools hjson py-cpuinfo psutil pydantic msgpack tqdm einops tyro"
FRAMEWORKS = "torchtitan==0.3.0 megatron-core==0.16.1 deepspeed==0.19.8 spmd_types"
"""Without what they need, torch above all, which is there."""

INPUTS = {"x": "(S(0),)", "target": "(S(0),)"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python with the frameworks, in an environment that is thrown away."""
    folder = tmp_path_factory.mktemp("frameworks")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch_of_tests.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    found = str(folder / "bin" / "python")
    bare = ["--no-deps", "--no-build-isolation", *FRAMEWORKS.split()]
    for wanted in (NEEDED.split(), bare):
        done = subprocess.run(
            [found, "-m", "pip", "install", "-q", *wanted],
            env={**os.environ, "DS_BUILD_OPS": "0"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"no frameworks: {done.stderr.strip()[-200:]}"
    return found


def plans(small: Plan, hostile: Plan) -> dict[str, Plan]:
    found = {"small": small, "hostile": hostile}
    for level, way in WAYS.items():
        pins = {"*.weight": way, "*.bias": way, "x": "(S(0))"}
        found[f"zero{level}"] = planned("dp=2", pins=pins)
    for name, stages in (("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)):
        found[name] = planned(
            "pp=2,dp=2",
            microbatches=4,
            schedule=name,
            stages_per_rank=stages,
            pins=INPUTS,
        )
    return found


@pytest.mark.slow
def test_frameworks_read_what_is_written(
    python: str, small: Plan, hostile: Plan, tmp_path: Path
) -> None:
    every = plans(small, hostile)
    for name, plan in every.items():
        for framework, write in WRITES.items():
            (tmp_path / f"{name}.{framework}").write_text(write(plan))
    sizes = {name: plan.mesh.size for name, plan in every.items()}
    (tmp_path / "ranks.json").write_text(json.dumps(sizes))
    script = Path(__file__).with_name("load_configs.py")
    done = subprocess.run(
        [python, "-W", "ignore", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, dict[str, Any]] = json.loads((tmp_path / "read.json").read_text())
    assert len(read) == len(WRITES) * len(every)
    for name, plan in every.items():
        own = Strategy(plan)
        tensor = own.degree(Use.TENSOR)
        titan = read[f"{name}.torchtitan"]
        degrees = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
        assert prod(titan[degree] for degree in degrees) == plan.mesh.size
        assert (titan["tp"], titan["pp"]) == (tensor, own.pipeline)
        assert titan["reshard"] == ("always" if own.zero == 3 else _never(own))
        megatron = read[f"{name}.megatron"]
        assert megatron["tensor_model_parallel_size"] == tensor
        assert megatron["pipeline_model_parallel_size"] == own.pipeline
        assert megatron["num_microbatches"] == plan.microbatches
        deepspeed = read[f"{name}.deepspeed"]
        assert deepspeed["zero"] == own.zero
        assert deepspeed["micro"] == own.micro_batch
        assert deepspeed["tensor_parallel"] == (tensor if tensor > 1 else 0)
        batches = titan, megatron
        assert {b["global_batch_size"] for b in batches} == {own.global_batch}
    schedules = [read[f"{n}.torchtitan"]["schedule"] for n in ("1f1b", "interleaved")]
    assert schedules == ["Schedule1F1B", "ScheduleInterleaved1F1B"]


def _never(own: Strategy) -> str:
    return "never" if own.zero else "default"
