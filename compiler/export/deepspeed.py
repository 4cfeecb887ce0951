"""The configuration of DeepSpeed 0.19 that comes nearest to a plan: its JSON file."""

from __future__ import annotations

import json
from typing import Any

from partita.compiler.cost.optimizer_memory import MOMENTUM
from partita.compiler.export.exporter import Exporter
from partita.compiler.export.strategy import Strategy, Use
from partita.compiler.plan.document import Document

_OPTIMIZERS = {
    "sgd": "SGD",
    MOMENTUM: "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "fused-adamw": "AdamW",
    "mixed-adamw": "AdamW",
}


def write_deepspeed(document: Document) -> str:
    """Return the configuration; ``partita`` in it lists what it leaves out.

    Raises:
        BadOptions: for stages on meshes of several shapes.
    """
    strategy = Strategy(document)
    notes = list(strategy.notes())
    config: dict[str, Any] = {
        "train_batch_size": strategy.global_batch,
        "train_micro_batch_size_per_gpu": strategy.micro_batch,
        "gradient_accumulation_steps": document.microbatches,
        "optimizer": {"type": _OPTIMIZERS[document.options.optimizer]},
        "zero_optimization": {"stage": strategy.zero},
    }
    if document.options.optimizer == MOMENTUM:
        notes.append("SGD has a momentum, of which a plan says no value: its params")
    if strategy.degree(Use.TENSOR) > 1:
        config["tensor_parallel"] = {"autotp_size": strategy.degree(Use.TENSOR)}
    if strategy.degree(Use.CONTEXT) > 1:
        config["sequence_parallel_size"] = strategy.degree(Use.CONTEXT)
    if strategy.degree(Use.EXPERT) > 1:
        degree = strategy.degree(Use.EXPERT)
        notes.append(f"{degree} ranks share the experts: MoE(..., ep_size={degree})")
    if strategy.pipeline > 1:
        degree = strategy.pipeline
        notes.append(f"{degree} pipeline places: PipelineModule(num_stages={degree})")
        notes.append(f"the schedule is {document.schedule.name}; DeepSpeed's is 1f1b")
    config["partita"] = {"not_expressed": notes}
    return json.dumps(config, indent=2) + "\n"


EXPORTER = Exporter(
    "deepspeed", "the nearest configuration of DeepSpeed", ".json", write_deepspeed
)
