"""The options of torchtitan 0.3 that come nearest to a plan (its ParallelismConfig)."""

from __future__ import annotations

from partita.compiler.export.exporter import Exporter
from partita.compiler.export.strategy import Strategy, Use
from partita.compiler.plan.document import Document

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
}


def write_torchtitan(document: Document) -> str:
    """Return options for the command line, a line each, and what they leave out.

    Raises:
        BadOptions: for stages on meshes of several shapes.
    """
    strategy = Strategy(document)
    data = strategy.data_parallel
    sharded = strategy.shards_data
    options: dict[str, object] = {
        "parallelism.data_parallel_replicate_degree": 1 if sharded else data,
        "parallelism.data_parallel_shard_degree": data if sharded else 1,
        "parallelism.tensor_parallel_degree": strategy.degree(Use.TENSOR),
        "parallelism.context_parallel_degree": strategy.degree(Use.CONTEXT),
        "parallelism.expert_parallel_degree": strategy.degree(Use.EXPERT),
        "parallelism.pipeline_parallel_degree": strategy.pipeline,
        "training.local_batch_size": strategy.micro_batch * document.microbatches,
        "training.global_batch_size": strategy.global_batch,
    }
    notes = list(strategy.notes())
    flags: list[str] = []
    if sharded:
        is_three = strategy.zero == 3
        reshard = "always" if is_three else "never"
        options["parallelism.fsdp_reshard_after_forward"] = reshard
        if strategy.zero == 1:
            notes.append("gradients stay whole until the update (ZeRO-1)")
    if strategy.pipeline > 1:
        name = document.schedule.name
        if name in _SCHEDULES:
            options["parallelism.pipeline_parallel_schedule"] = _SCHEDULES[name]
        else:
            notes.append(
                f"the schedule is {name}: give what --to schedule writes as "
                "--parallelism.pipeline_parallel_schedule_csv"
            )
        options["parallelism.pipeline_parallel_microbatch_size"] = strategy.micro_batch
    elif document.microbatches > 1:
        options["training.local_batch_size"] = strategy.micro_batch
    if strategy.degree(Use.TENSOR) > 1 and not strategy.sequence_parallel:
        flags.append("parallelism.no-enable-sequence-parallel")
    if strategy.sequence is not None:
        options["training.seq_len"] = strategy.sequence
    lines = [f"# not expressed: {note}" for note in notes]
    lines += [f"--{name}={value}" for name, value in options.items()]
    lines += [f"--{name}" for name in flags]
    return "\n".join([*lines, ""])


EXPORTER = Exporter(
    "torchtitan", "the nearest options of torchtitan", ".args", write_torchtitan
)
