"""The options of Megatron-LM that come nearest to a plan (megatron.core 0.16)."""

from __future__ import annotations

from partita.compiler.export.exporter import Exporter
from partita.compiler.export.strategy import Strategy, Use
from partita.compiler.plan.document import Document


def write_megatron(document: Document) -> str:
    """Return options for the command line, a line each, and what they leave out.

    Raises:
        BadOptions: for stages on meshes of several shapes.
    """
    strategy = Strategy(document)
    options: dict[str, object] = {
        "tensor-model-parallel-size": strategy.degree(Use.TENSOR),
        "context-parallel-size": strategy.degree(Use.CONTEXT),
        "expert-model-parallel-size": strategy.degree(Use.EXPERT),
        "pipeline-model-parallel-size": strategy.pipeline,
        "micro-batch-size": strategy.micro_batch,
        "global-batch-size": strategy.global_batch,
    }
    if strategy.stages_per_rank > 1:
        each = strategy.stages_per_rank
        options["num-virtual-stages-per-pipeline-rank"] = each
    if strategy.sequence is not None:
        options["seq-length"] = strategy.sequence
    flags: list[str] = []
    notes = list(strategy.notes())
    if strategy.sequence_parallel:
        flags.append("sequence-parallel")
    if strategy.zero == 1:
        flags.append("use-distributed-optimizer")
    elif strategy.zero > 1:
        flags.append("use-megatron-fsdp")
        word = "optim_grads" if strategy.zero == 2 else "optim_grads_params"
        options["data-parallel-sharding-strategy"] = word
    if document.schedule.name not in ("sequential", "1f1b", "interleaved"):
        name = document.schedule.name
        notes.append(f"the schedule is {name}; Megatron's are 1f1b and interleaved")
    lines = [f"# not expressed: {note}" for note in notes]
    lines += [f"--{name} {value}" for name, value in options.items()]
    lines += [f"--{name}" for name in flags]
    return "\n".join([*lines, ""])


EXPORTER = Exporter(
    "megatron", "the nearest options of Megatron-LM", ".args", write_megatron
)
