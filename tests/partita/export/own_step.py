"""A step of our own program, every rank in this process, and one of an exported one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.torch_ranks import END, START, run_ranks

from partita.compiler.capture.inputs import name_leaves
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.plan.plan import Plan
from partita.lowering import capture_for, lower
from partita.runtime.feeds import FeedKey, part_of_batch, shards_of
from partita.runtime.shards import take_shard
from partita.runtime.virtual import run_all
from partita.runtime.virtual_step import run_step
from partita.verifying.virtual_stages import VirtualStages

Built = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
Found = dict[str, torch.Tensor]

STEP = """\
import exported
model = exported.Model(load("weights.pt"), "cpu")
loss = model.step(load("batch.pt"))
found = {n: p.grad for n, p in model.parameters.items() if p.grad is not None}
found |= {f"buffer:{n}": x for n, x in model.buffers.items()}
found |= {"loss": loss} if loss is not None else {}
for name, parts in model.outputs.items():
    found[f"output:{name}"] = torch.cat([torch.atleast_1d(part) for part in parts])
save(found)
"""


def tensors_of(built: Built) -> Found:
    """Return the tensors of the batch by name."""
    leaves = name_leaves(*built)
    return {n: x for n, x in leaves.items() if isinstance(x, torch.Tensor)}


def values_of(built: Built) -> dict[FeedKey, torch.Tensor]:
    """Return whole tensors by what they enter as: the batch and the state."""
    values: dict[FeedKey, torch.Tensor] = {
        (InputKind.INPUT, name): value for name, value in tensors_of(built).items()
    }
    for name, parameter in built[0].named_parameters():
        values[InputKind.PARAMETER, name] = parameter.detach()
    for name, buffer in built[0].named_buffers():
        values[InputKind.BUFFER, name] = buffer
    return values


def own_step(built: Built, plan: Plan) -> list[Found]:
    """Return by rank the loss and the gradients that our own programs make."""
    model, _, _ = built
    (lowered,) = lower(capture_for(model, plan), plan)
    ranks = lowered.of_all()
    values = values_of(built)
    brought: list[dict[FeedKey, torch.Tensor]] = [{} for _ in ranks]
    with torch.no_grad():
        for programs in zip(
            *(lowered.bringing_at(r.coordinates) for r in ranks), strict=True
        ):
            made = run_all(programs, [shards_of(p, values) for p in programs])
            role = programs[0].inputs[0]
            for rank, (value,) in enumerate(made):
                assert value is not None
                brought[rank][role.kind, role.name] = value
        last = list(
            zip(*(lowered.completing_at(r.coordinates) for r in ranks), strict=True)
        )

        def feeds_of(number: int) -> list[dict[FeedKey, torch.Tensor]]:
            parts = part_of_batch(ranks[0], values, number)
            return [
                shards_of(r, parts) | own for r, own in zip(ranks, brought, strict=True)
            ]

        left = run_step(ranks, last, feeds_of)
    found: list[Found] = [{} for _ in ranks]
    for role, own in left.items():
        if role.kind is OutputKind.LOSS or role.kind is OutputKind.GRADIENT:
            (shards,) = own.shards
            for rank, shard in enumerate(shards):
                found[rank][role.name] = shard
    return found


def staged_step(built: Built, plan: Plan, stages: VirtualStages) -> list[Found]:
    """Return the same of a pipeline; the loss is with those that make it."""
    with torch.no_grad():
        left = stages.run(values_of(built))
    found: list[Found] = [{} for _ in range(plan.mesh.size)]
    for stage, (_, own) in zip(plan.stages, left, strict=True):
        for role, outputs in own.items():
            if role.kind is OutputKind.LOSS or role.kind is OutputKind.GRADIENT:
                (shards,) = outputs.shards
                for rank, shard in zip(stage.ranks, shards, strict=True):
                    found[rank][role.name] = shard
    return found


def eager_step(built: Built, plan: Plan) -> list[Found]:
    """Return by rank its parts of the loss and gradients of the model itself."""
    model, args, kwargs = built
    model.zero_grad()
    output = model(*args, **kwargs)
    loss = output if isinstance(output, torch.Tensor) else output.loss
    loss.backward()
    homes = {
        node.role.name: plan.stages[node.stage]
        for node in plan.nodes.values()
        if node.role is not None and node.role.kind is InputKind.PARAMETER
    }
    found: list[Found] = [{"loss": loss.detach()} for _ in range(plan.mesh.size)]
    for name, stage in homes.items():
        gradient = model.get_parameter(name).grad
        own = plan.parameters[name].placements
        assert gradient is not None
        for rank, here in zip(stage.ranks, stage.mesh.all_coordinates(), strict=True):
            placement = own.optimizer or own.storage
            found[rank][name] = take_shard(gradient, placement, stage.mesh, here)
    return found


def exported_step(
    source: bytes, built: Built, num_ranks: int, folder: Path
) -> list[Found]:
    """Return by rank what the exported file makes, run where there is no Partita."""
    folder.mkdir()
    (folder / "exported.py").write_bytes(source)
    (folder / "script.py").write_text(START + STEP + END)
    torch.save(built[0].state_dict(), folder / "weights.pt")
    torch.save(tensors_of(built), folder / "batch.pt")
    run_ranks(folder / "script.py", num_ranks)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(num_ranks)]


def worst_difference(ours: list[Found], theirs: list[Found]) -> float:
    """Return the largest difference of a loss or a gradient, on any rank."""
    assert len(ours) == len(theirs)
    worst = 0.0
    for own, other in zip(ours, theirs, strict=True):
        assert set(own) <= set(other)
        for name, value in own.items():
            assert value.shape == other[name].shape, name
            assert value.dtype == other[name].dtype, name
            if value.numel():
                worst = max(worst, float((value - other[name]).abs().max()))
    return worst
