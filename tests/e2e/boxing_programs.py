"""One boxing as the programs of all ranks, its shards, and what it should give."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, cast

import torch
from tests.compiler.cost.boxing_pairs import held
from tests.passes import lockstep
from torch import fx

from partita.compiler.cost.boxing import Steps, cheapest_steps
from partita.compiler.cost.step import Step
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    set_info,
)
from partita.compiler.ir.sbp import Broadcast, Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.exchange_instead import exchange_instead
from partita.passes.exchange_pairs import exchange_pairs
from partita.passes.localize import part_key
from partita.passes.lower_boxings import emit_steps
from partita.runtime.collectives import is_collective
from partita.runtime.feeds import FeedKey, Feeds
from partita.runtime.virtual import run_all

Coords = tuple[int, ...]
X: FeedKey = (InputKind.INPUT, "x")


@dataclass(frozen=True)
class BoxingCase:
    """A pair of placements of one tensor, and the steps that are planned for it.

    ``hardware`` is what they are planned for.
    """

    type: TensorType
    source: Placement
    target: Placement
    mesh: Mesh
    planned: Steps
    hardware: Hardware

    @classmethod
    def of(
        cls,
        type: TensorType,
        pair: tuple[Placement, Placement],
        mesh: Mesh,
        hardware: Hardware,
    ) -> BoxingCase:
        steps = cheapest_steps(type, *pair, mesh, hardware)
        return cls(type, *pair, mesh, steps, hardware)

    def __str__(self) -> str:
        return f"{self.type} {self.source} -> {self.target} on {self.mesh}"

    def value(self) -> torch.Tensor:
        """Return a logical value: any bits for copies, small integers for sums."""
        generator = torch.Generator().manual_seed(len(str(self)))
        shape, dtype = self.type.shape, self.type.dtype
        if self.source.has_partial or self.target.has_partial:
            return torch.randint(-99, 99, shape, generator=generator).to(dtype)
        x = torch.randn(shape, generator=generator, dtype=dtype)
        for index, odd in enumerate((-0.0, float("nan"), float("inf"))):
            x.view(-1)[index::5] = odd
        return x

    def shards(self) -> list[torch.Tensor]:
        """Return what the ranks start with."""
        generator = torch.Generator().manual_seed(1)
        return lockstep.scatter(self.value(), self.source, self.mesh, generator)

    def program(self, coords: Coords) -> LocalProgram:
        """Return what the rank at ``coords`` runs."""
        exchanged = exchange_instead(self.lowered(coords), self.hardware)
        return exchange_pairs(exchanged)

    def lowered(self, coords: Coords) -> LocalProgram:
        """Return the same before any of its collectives is made an exchange."""
        graph = fx.Graph()
        x = graph.placeholder("x")
        nodes = tuple(graph.placeholder(f"at_{name}") for name in self.mesh.names)
        steps = self.planned.steps
        y, types = emit_steps(
            graph, x, self.type, steps, self.mesh, coords, nodes, stage=0
        )
        graph.output((y,))
        graph.eliminate_dead_code()
        for node in graph.nodes:
            if node.op == "call_function":
                key = part_key("x -> y", node.name)
                known = (types[node],) if node in types else ()
                set_info(node, NodeInfo(key, Phase.FORWARD, known))
        none = (None,) * len(nodes)
        axes = [InputRole(InputKind.COORDINATE, name) for name in self.mesh.names]
        return LocalProgram(
            graph_module=fx.GraphModule(torch.nn.Module(), graph),
            inputs=(InputRole(*X), *axes),
            outputs=(OutputRole(OutputKind.OUTPUT, "y"),),
            input_types=(self.type, *none),
            output_types=(self.type,),
            input_placements=(self.source, *none),
            output_placements=(self.target,),
            mesh=self.mesh,
            coordinates=coords,
        )

    def check(self, results: list[torch.Tensor]) -> None:
        """Check what the ranks end with; copies to the last bit."""
        shape, mesh, x = self.type.shape, self.mesh, self.value()
        if self.target.has_partial:
            for coords, found in zip(mesh.all_coordinates(), results, strict=True):
                want = tuple(map(len, held(shape, self.target, mesh, coords)))
                assert tuple(found.shape) == want, f"{self} at {coords}"
            doubles = [found.double() for found in results]
            whole = lockstep.gather(doubles, shape, self.target, mesh)
            assert torch.equal(whole, x.double()), str(self)
            return
        for coords, found in zip(mesh.all_coordinates(), results, strict=True):
            want = x
            for dim, indices in enumerate(held(shape, self.target, mesh, coords)):
                want = want.index_select(dim, torch.tensor(indices, dtype=torch.int64))
            assert found.dtype == want.dtype
            assert found.is_contiguous()
            if self.source.has_partial:
                assert torch.equal(found, want), f"{self} at {coords}"
            else:
                same = torch.equal(_bits(found), _bits(want))
                assert same, f"{self} at {coords}: {found}, not {want}"

    def communicates(self, step: Step, coords: Coords) -> bool:
        """Whether the group at ``coords`` has anything to send in ``step``."""
        together = step.before.with_axis(step.axis, Broadcast())
        some = all(held(self.type.shape, together, self.mesh, coords))
        return step.collective is not None and some


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)


def run_in_one_process(case: BoxingCase) -> None:
    """Run all ranks here; check the values, and each step's bytes on the wire."""
    coordinates = case.mesh.all_coordinates()
    programs = [case.program(coords) for coords in coordinates]
    shapes: dict[tuple[int, fx.Node], tuple[int, ...]] = {}
    sizes: dict[fx.Node, int] = {}  # of what is put in: of a complex number, a half

    def observe(rank: int, node: fx.Node, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            shapes[rank, node] = tuple(value.shape)
            sizes[node] = value.dtype.itemsize

    feeds: list[Feeds] = [{X: shard} for shard in case.shards()]
    results = run_all(programs, feeds, observe=observe)
    found = [y for (y,) in results]
    case.check([y for y in found if y is not None])

    wires: dict[Step, list[float]] = defaultdict(list)
    for rank, (program, coords) in enumerate(zip(programs, coordinates, strict=True)):
        calls = [n for n in program.graph_module.graph.nodes if is_collective(n)]
        steps = [s for s in case.planned.steps if case.communicates(s, coords)]
        for step, call in zip(steps, calls, strict=True):
            numel = shapes[rank, call.args[0]]
            size, at = case.mesh.sizes[step.axis], coords[step.axis]
            words = _words(call, numel, size, at)
            wires[step].append(words * sizes[call.args[0]])
    total = sum(ceil(max(w)) for w in wires.values())
    assert total == case.planned.bytes, f"{case}: {total}, not {case.planned.bytes}"


def _words(call: fx.Node, shape: tuple[int, ...], size: int, at: int) -> float:
    """Return the words that a call sends or receives, by rings where all have some."""
    numel = prod(shape)
    match str(call.target).split(".")[1]:
        case "all_gather_into_tensor":
            return (size - 1) * numel
        case "all_reduce":
            return 2 * (size - 1) * numel / size
        case "reduce_scatter_tensor":
            return (size - 1) * numel / size
        case _:
            row = prod(shape[1:])
            splits = cast(list[list[int]], call.args[1:3])
            return max((sum(rows) - rows[at]) * row for rows in splits)
