"""Load exported configurations with the classes of the frameworks they are for.

    python load_configs.py FOLDER

FOLDER holds, for each plan, ``NAME.torchtitan``, ``NAME.megatron`` and
``NAME.deepspeed`` as they were exported; what the frameworks read of them is printed as
JSON. This runs where the frameworks are, and knows nothing of Partita.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, field, fields, make_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


def load(module: str) -> Any:
    """Return a module that is not there where Partita's types are checked."""
    return import_module(module)


def options_of(text: str) -> list[str]:
    """Return the words of a command line, comments left out."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def load_torchtitan(text: str, num_ranks: int) -> dict[str, Any]:
    """Return what torchtitan makes of options: its parser, its mesh, its schedules."""
    tyro, schedules = load("tyro"), load("torch.distributed.pipelining.schedules")
    configs, manager = (load(f"torchtitan.config.{n}") for n in ("configs", "manager"))
    dims = load("torchtitan.distributed.parallel_dims")

    parts = {
        "training": configs.TrainingConfig,
        "parallelism": configs.ParallelismConfig,
    }
    made = [(name, kind, field(default_factory=kind)) for name, kind in parts.items()]
    config = make_dataclass("Config", made)
    read: Any = tyro.cli(
        config, args=options_of(text), registry=manager.custom_registry
    )
    own = read.parallelism
    degrees = {
        "dp_replicate": own.data_parallel_replicate_degree,
        "dp_shard": own.data_parallel_shard_degree,
        "cp": own.context_parallel_degree,
        "tp": own.tensor_parallel_degree,
        "pp": own.pipeline_parallel_degree,
        "ep": own.expert_parallel_degree,
    }
    dims.ParallelDims(**degrees, world_size=num_ranks)
    name = own.pipeline_parallel_schedule
    schedule = schedules.get_schedule_class(name).__name__
    reshard = own.fsdp_reshard_after_forward
    return {**degrees, "schedule": schedule, "reshard": reshard} | asdict(read.training)


def load_megatron(text: str, num_ranks: int) -> dict[str, Any]:
    """Return what Megatron core's own classes hold of options.

    Its parser of a command line is not among what is installed as megatron.core: an
    option is a field of one of the classes, by its name.
    """
    core = "megatron.core"
    calculators = load(f"{core}.num_microbatches_calculator")
    parallel = load(f"{core}.model_parallel_config").ModelParallelConfig
    replicated = load(f"{core}.distributed").DistributedDataParallelConfig

    words = [line.removeprefix("--").split(" ") for line in options_of(text)]
    given = {w[0].replace("-", "_"): _value(*w[1:]) for w in words}
    batch = {n: given.pop(n) for n in ("global_batch_size", "micro_batch_size")}
    sequence = given.pop("seq_length", None)
    stages = given.pop("num_virtual_stages_per_pipeline_rank", None)
    if stages is not None:
        given["virtual_pipeline_model_parallel_size"] = stages
    found: dict[str, Any] = {**batch, "seq_length": sequence}
    known: dict[type[Any], dict[str, Any]] = {
        parallel: {"pipeline_dtype": load("torch").float32},
        replicated: {},
    }
    for kind, own in known.items():
        names = {one.name for one in fields(kind)}
        own |= {name: given.pop(name) for name in list(given) if name in names}
        made = kind(**own)
        found |= {name: getattr(made, name) for name in own if name != "pipeline_dtype"}
    assert not given, f"Megatron has no {sorted(given)}"
    ranks = num_ranks
    for word in ("tensor_model", "context", "pipeline_model"):
        ranks //= found[f"{word}_parallel_size"]
    calculator = calculators.ConstantNumMicroBatchesCalculator(
        batch["global_batch_size"], batch["micro_batch_size"], ranks, False, 0
    )
    return {**found, "num_microbatches": calculator.get()}


def _value(text: str | None = None) -> bool | int | str:
    if text is None:
        return True
    return int(text) if text.isdecimal() else text


def load_deepspeed(text: str, _: int) -> dict[str, Any]:
    """Return what DeepSpeed's own class reads of a configuration."""

    class Ranks:
        """Stands in for the groups of a run: so many ranks see other samples."""

        def get_data_parallel_world_size(self) -> int:
            config = json.loads(text)
            steps = config["gradient_accumulation_steps"]
            each = config["train_micro_batch_size_per_gpu"] * steps
            return config["train_batch_size"] // each

    module = load("deepspeed.runtime.config")
    module.dist.get_rank = lambda: 0  # there is no run
    read = module.DeepSpeedConfig(json.loads(text), mpu=Ranks())
    return {
        "train_batch_size": read.train_batch_size,
        "micro": read.train_micro_batch_size_per_gpu,
        "steps": read.gradient_accumulation_steps,
        "optimizer": read.optimizer_name,
        "zero": int(read.zero_optimization_stage),
        "tensor_parallel": read.tensor_parallel_config.autotp_size,
    }


LOADS = {
    "torchtitan": load_torchtitan,
    "megatron": load_megatron,
    "deepspeed": load_deepspeed,
}


def main(folder: str) -> None:
    """Load everything; print what was read by file."""
    sizes = json.loads((Path(folder) / "ranks.json").read_text())
    found: dict[str, Any] = {}
    for path in sorted(Path(folder).iterdir()):
        framework = LOADS.get(path.suffix[1:])
        if framework is not None:
            found[path.name] = framework(path.read_text(), sizes[path.stem])
    (Path(folder) / "read.json").write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
