"""The program of one rank: a graph over its shards, collectives included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from partita.compiler.ir.in_time import WHOLE, InTime
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputRole, OutputRole
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True)
class LocalProgram:
    """What one rank runs: lowered, localized, its groups named ``stage0/<axis>``.

    ``inputs[i]`` is the role of placeholder i; ``input_types[i]`` its logical type
    and ``input_placements[i]`` its placement, both ``None`` for a coordinate (an
    int). Outputs likewise; an output is ``None`` where the graph has no such tensor.
    ``constants`` are whole (logical) tensors by placeholder name. ``in_time`` says how
    runs on parts of the batch make up a step.
    """

    graph_module: fx.GraphModule
    inputs: tuple[InputRole, ...]
    outputs: tuple[OutputRole, ...]
    input_types: tuple[TensorType | None, ...]
    output_types: tuple[TensorType | None, ...]
    input_placements: tuple[Placement | None, ...]
    output_placements: tuple[Placement | None, ...]
    mesh: Mesh
    coordinates: tuple[int, ...]
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    in_time: InTime = WHOLE


@dataclass(frozen=True)
class Closing:
    """The last backward of a stage, cut where sums over microbatches are whole.

    Attributes:
        phases: of the backward, in order.
        begun: by phase, the numbers of the completing programs that begin behind it.
        halves: those programs by number, each up to its first collective, that begun,
            and from the wait for that on.
    """

    phases: tuple[LocalProgram, ...]
    begun: tuple[tuple[int, ...], ...]
    halves: Mapping[int, tuple[LocalProgram, LocalProgram]]
