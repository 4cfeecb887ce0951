"""Run a step part by part: microbatches add to sums, and these are completed once.

What the microbatches make of a gradient or of the loss is added up in place, where it
is made: no rank tells another of it before the last microbatch. Buffers are written
alike by all of them, from what they were before the step, and so once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import fx

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, InputRole, OutputKind, OutputRole
from partita.compiler.ir.sbp import Partial, Sharding, Split
from partita.runtime.executor import Executable, Outputs
from partita.runtime.feeds import FeedKey, Feeds
from partita.runtime.finishing import Finishing


@dataclass(frozen=True)
class Microbatches:
    """The microbatches of a step and what follows them.

    Attributes:
        body: what each of them runs; it adds to the sums that it is fed.
        completing: what brings sums to where they leave.
        sums: by output, the one that it is of; equal outputs share one.
    """

    body: Executable
    completing: tuple[Executable, ...]
    sums: Mapping[OutputRole, FeedKey]

    def run(
        self, feeds_of: Callable[[int], Feeds], device: torch.device | None
    ) -> Outputs:
        """Run all microbatches, each on its feeds; return what a step needs of them.

        These are the loss, gradients and buffers.
        """
        local = self.body.local
        sums = zeros_for(local, device)
        made: tuple[torch.Tensor | None, ...] = ()
        for number in range(local.in_time.count):
            del made  # that of the last microbatch
            made = self.body.run({**feeds_of(number), **sums})
        left: dict[OutputRole, torch.Tensor | None] = {
            role: value
            for role, value in zip(local.outputs, made, strict=True)
            if role.kind is OutputKind.MUTATED_BUFFER
        }
        del made
        return left | Finishing(self.completing, self.sums, sums).end()


def zeros_for(
    local: LocalProgram, device: torch.device | None
) -> dict[FeedKey, torch.Tensor]:
    """Return the zeros to which the microbatches of a program add."""
    found: dict[FeedKey, torch.Tensor] = {}
    entering = zip(local.inputs, local.input_types, local.input_placements, strict=True)
    for role, type_, placement in entering:
        if role.kind is InputKind.ACCUMULATED:
            assert type_ is not None
            assert placement is not None
            shape = shard_shape(type_.shape, placement, local.mesh, local.coordinates)
            zeros = torch.zeros(shape, dtype=type_.dtype, device=device)
            found[role.kind, role.name] = zeros
    return found


def adding(
    local: LocalProgram,
) -> tuple[LocalProgram, dict[OutputRole, FeedKey]]:
    """Return ``local`` as it runs for each microbatch, and which sum outputs are of.

    Where there is one microbatch these leave as they are made, and are the sums.
    """
    if local.in_time.count > 1:
        return accumulating(local)
    own = (role for role in local.outputs if role.kind.adds_up)
    return local, {role: (InputKind.ACCUMULATED, str(role)) for role in own}


def accumulating(
    local: LocalProgram,
) -> tuple[LocalProgram, dict[OutputRole, FeedKey]]:
    """Return ``local`` with what adds up added to inputs, in place, as it is made.

    And, by output, to which: outputs that are one tensor share one.
    """
    if not any(role.kind.adds_up for role in local.outputs):
        return local, {}
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    results = cast(
        tuple[fx.Node, ...], graph.graph_copy(local.graph_module.graph, values)
    )
    last = graph.find_nodes(op="placeholder")[-1]
    keys: dict[fx.Node, FeedKey] = {}
    sums: dict[OutputRole, FeedKey] = {}
    entering: list[int] = []
    for position, (made, role) in enumerate(zip(results, local.outputs, strict=True)):
        if not role.kind.adds_up:
            continue
        if made not in keys:
            keys[made] = InputKind.ACCUMULATED, str(role)
            entering.append(position)
            with graph.inserting_after(last):
                total = graph.placeholder(f"accumulated_{position}")
            with graph.inserting_after(total if made.op == "placeholder" else made):
                graph.call_function(torch.ops.aten.add_.Tensor, (total, made))
            last = total
        sums[role] = keys[made]
    kept = [i for i, role in enumerate(local.outputs) if not role.kind.adds_up]
    graph.output(tuple(results[i] for i in kept))
    roles = tuple(
        InputRole(InputKind.ACCUMULATED, str(local.outputs[i])) for i in entering
    )
    joins = tuple(local.in_time.joins[i] for i in kept if local.in_time.joins)
    added = replace(
        local,
        graph_module=fx.GraphModule(local.graph_module, graph),
        inputs=(*local.inputs, *roles),
        input_types=(*local.input_types, *(local.output_types[i] for i in entering)),
        input_placements=(
            *local.input_placements,
            *(local.output_placements[i] for i in entering),
        ),
        outputs=tuple(local.outputs[i] for i in kept),
        output_types=tuple(local.output_types[i] for i in kept),
        output_placements=tuple(local.output_placements[i] for i in kept),
        in_time=replace(local.in_time, joins=joins),
    )
    return added, sums


def joined(parts: Sequence[torch.Tensor], join: Sharding) -> torch.Tensor:
    """Return the tensor of the whole batch of which microbatches make these parts.

    >>> joined([torch.tensor([1, 2]), torch.tensor([3, 4])], Split(0))
    tensor([1, 2, 3, 4])
    """
    if isinstance(join, Split):
        return _interleaved(parts, join)
    if isinstance(join, Partial):
        return torch.stack(tuple(parts)).sum(0)
    return parts[-1]


def _interleaved(parts: Sequence[torch.Tensor], join: Split) -> torch.Tensor:
    """Return the parts of every segment, one segment after another."""
    whole = sum(part.shape[join.dim] for part in parts)
    sizes = [size // len(parts) for size in join.segments or (whole,)]
    pieces = [part.split(sizes, join.dim) for part in parts]
    return torch.cat([p for own in zip(*pieces, strict=True) for p in own], join.dim)
