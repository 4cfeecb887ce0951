"""What axes are for, told from placements alone, and the options of three frameworks.

The names of options are those of torchtitan 0.3.0 (config/configs.py), of Megatron-LM
(megatron.core 0.16.1 and its arguments) and of DeepSpeed 0.19 (runtime/config.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.pipelines import BATCH, WIDTH, Chain

import partita as pt
from partita.compiler.errors import BadOptions
from partita.compiler.export.deepspeed import write_deepspeed
from partita.compiler.export.megatron import write_megatron
from partita.compiler.export.strategy import Strategy, Use
from partita.compiler.export.torchtitan import write_torchtitan
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stage_records import Stage

TORCHTITAN = {
    "parallelism": {
        "data_parallel_replicate_degree", "data_parallel_shard_degree",
        "fsdp_reshard_after_forward", "tensor_parallel_degree",
        "no-enable-sequence-parallel", "pipeline_parallel_degree",
        "pipeline_parallel_schedule", "pipeline_parallel_microbatch_size",
        "context_parallel_degree", "expert_parallel_degree",
    },
    "training": {"local_batch_size", "global_batch_size", "seq_len"},
}  # fmt: skip
MEGATRON = {
    "tensor-model-parallel-size", "context-parallel-size", "micro-batch-size",
    "expert-model-parallel-size", "pipeline-model-parallel-size", "global-batch-size",
    "num-virtual-stages-per-pipeline-rank", "seq-length", "sequence-parallel",
    "use-distributed-optimizer", "use-megatron-fsdp", "data-parallel-sharding-strategy",
}  # fmt: skip


def planned(mesh: str, **options: Any) -> Plan:
    torch.manual_seed(0)
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    asked: dict[str, Any] = {"microbatches": 1, **options}
    return pt.plan(Chain(4), *batch, mesh=mesh, options=pt.Options(**asked))


WAYS = {
    0: "storage=(B); use=(B)",
    1: "storage=(B); gradient=(B); optimizer=(S(0)); use=(B)",
    2: "storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(B)",
    3: "storage=(S(0)); use=(B)",
}


@pytest.fixture(scope="module")
def zero() -> dict[int, Plan]:
    """Return plans of data parallelism, by what of a parameter is in pieces."""
    return {
        level: planned("dp=2", pins={"*.weight": way, "*.bias": way, "x": "(S(0))"})
        for level, way in WAYS.items()
    }


def options_of(text: str) -> dict[str, str]:
    """Return the options of lines of them, comments left out."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    pairs = (re.fullmatch(r"--([\w.-]+)(?:[ =](\S+))?", line) for line in lines)
    return {match[1]: match[2] or "" for match in pairs if match is not None}


def test_axes_are_told_from_placements(small: Plan) -> None:
    assert Strategy(small).uses == {"dp": Use.DATA, "tp": Use.TENSOR}
    assert Strategy(small).micro_batch == 4


@pytest.mark.parametrize("level", WAYS)
def test_the_stage_of_zero_is_that_of_most_bytes(
    zero: dict[int, Plan], level: int
) -> None:
    plan = zero[level]
    assert Strategy(plan).uses == {"dp": Use.DATA}
    assert Strategy(plan).zero == level
    assert json.loads(write_deepspeed(plan))["zero_optimization"] == {"stage": level}
    titan = options_of(write_torchtitan(plan))
    degrees = ["replicate", "shard"]
    found = [titan[f"parallelism.data_parallel_{d}_degree"] for d in degrees]
    assert found == (["1", "2"] if level else ["2", "1"])
    megatron = options_of(write_megatron(plan))
    assert ("use-distributed-optimizer" in megatron) == (level == 1)
    assert ("use-megatron-fsdp" in megatron) == (level > 1)


def test_a_pipeline_has_its_schedule_and_microbatches(staged: Plan) -> None:
    titan = options_of(write_torchtitan(staged))
    assert titan["parallelism.pipeline_parallel_degree"] == "2"
    assert titan["parallelism.pipeline_parallel_schedule"] == "1F1B"
    megatron = options_of(write_megatron(staged))
    assert megatron["pipeline-model-parallel-size"] == "2"
    config = json.loads(write_deepspeed(staged))
    sizes = config["train_micro_batch_size_per_gpu"] * Strategy(staged).data_parallel
    assert sizes * config["gradient_accumulation_steps"] == config["train_batch_size"]
    assert any("PipelineModule" in note for note in config["partita"]["not_expressed"])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum-sgd"])
def test_a_momentum_that_the_configuration_lacks_is_told(
    optimizer: str, small: Plan
) -> None:
    options = replace(small.options, optimizer=optimizer)
    config = json.loads(write_deepspeed(replace(small, options=options)))
    assert config["optimizer"] == {"type": "SGD"}
    notes = config["partita"]["not_expressed"]
    assert any("momentum" in note for note in notes) is (optimizer != "sgd")


@pytest.mark.parametrize("name", ["small", "hostile", "staged"])
def test_options_are_those_that_frameworks_have(
    name: str, request: pytest.FixtureRequest
) -> None:
    plan: Plan = request.getfixturevalue(name)
    for option in options_of(write_torchtitan(plan)):
        group, _, field = option.partition(".")
        assert field in TORCHTITAN[group]
    assert set(options_of(write_megatron(plan))) <= MEGATRON
    for text in (write_torchtitan(plan), write_megatron(plan)):
        assert all(
            line.startswith(("# not expressed: ", "--")) for line in text.splitlines()
        )
        assert text.replace("\n", "").isprintable()


def test_what_is_not_expressed_is_listed(small: Plan) -> None:
    notes = Strategy(small).notes()
    assert "up.weight x1: used as (B, S(1)), held as (B, S(1))" in notes
    assert Strategy(replace(small, fusion=(("relu/0",),))).notes()[-1] == (
        "1 groups of calls are one kernel each"
    )


def test_stages_on_unlike_meshes_are_refused(staged: Plan) -> None:
    first, second = staged.stages
    other = Stage(pt.Mesh(tp=2), second.ranks, second.nodes)
    with pytest.raises(BadOptions, match="the plan's stages have meshes of several"):
        Strategy(replace(staged, stages=(first, other)))
