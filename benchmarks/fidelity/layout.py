"""How a model was trained: on which ranks, in which parts, with what kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fidelity.models import Shape
from benchmarks.fidelity.system import MEGATRON, System

import partita as pt
from partita.compiler.hardware.profile import Hardware


@dataclass(frozen=True)
class Layout:
    """A training run's step.

    Attributes:
        shape: the model.
        hardware: the profile, or its name.
        pp: pipeline ranks.
        dp: data-parallel ranks.
        tp: tensor-parallel ranks.
        micro: samples of a microbatch on one data-parallel rank.
        batch: samples of a step.
        virtual: stages on a pipeline rank.
        schedule: of the pipeline.
        recompute: ``"full"``, ``"selective"`` (the core of attention) or ``"none"``.
        zero: of what the optimizer has: 0 or 1.
        is_sequence_parallel: whether tensor-parallel ranks split the sequence.
        sizes: layers by stage; equal unless said.
        fuse: whether small ops were compiled together.
        system: what carried it out.
    """

    shape: Shape
    hardware: str | Hardware
    pp: int
    dp: int
    tp: int
    micro: int
    batch: int
    virtual: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"
    zero: int = 0
    is_sequence_parallel: bool = False
    sizes: tuple[int, ...] = ()
    fuse: bool = True
    system: System = MEGATRON

    def __str__(self) -> str:
        """Return what tells it from others of its kind."""
        shape = self.shape
        parts = [
            f"{shape.layers}x{shape.hidden}",
            f"pp{self.pp}",
            f"dp{self.dp}",
            f"tp{self.tp}",
            f"{self.microbatches}x{self.micro}",
        ]
        parts += [f"v{self.virtual}"] if self.virtual > 1 else []
        parts += [self.recompute] if self.recompute != "none" else []
        parts += ["zero"] if self.zero else []
        return " ".join(parts)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.pp * self.dp * self.tp

    @property
    def microbatches(self) -> int:
        """How many a step has."""
        count, rest = divmod(self.batch, self.micro * self.dp)
        if rest:
            raise ValueError(f"{self.batch} samples do not make even microbatches")
        return count

    @property
    def mesh(self) -> pt.Mesh:
        """The mesh of a stage."""
        return pt.Mesh(dp=self.dp, tp=self.tp)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The sizes of the groups that rank 0 is in, each set of ranks once.

        All ranks, those of a node, and those along ``tp``, ``dp`` and ``pp``; and the
        ranks that hold parts of the same copy of the model.
        """
        row = self.tp * self.dp
        ways = range(self.tp), range(0, row, self.tp), range(0, self.ranks, row)
        copy = [first + rank for first in ways[2] for rank in ways[0]]
        node = range(min(8, self.ranks))
        groups = {tuple(ranks) for ranks in (range(self.ranks), node, *ways, copy)}
        return tuple(sorted(len(ranks) for ranks in groups if len(ranks) > 1))

    @property
    def not_kept(self) -> tuple[str, ...]:
        """Patterns of the modules whose activations are made again."""
        known = {"full": ("layers.*",), "selective": ("layers.*.core",), "none": ()}
        return known[self.recompute]

    @property
    def patterns(self) -> tuple[str, ...]:
        """What is made again, as ``Options(recompute=)`` takes it.

        Of a sequence that is split the gathered copies are, too: arXiv:2205.05198,
        section 4.2.2, and Nanotron's ``tp_recompute_allgather``. So is what lies inside
        of the system's kernels.
        """
        gathered = ("layers.*norm*/* -> *", "layers.*.qkv/view/0", "layers.*.up/view/0")
        again = self.not_kept + self.system.fused
        return again + gathered * self.is_sequence_parallel

    @property
    def layers_of_stages(self) -> Sequence[int]:
        """The layers of each stage, in order.

        Where they cannot be equal, the first stages have one more.
        """
        if self.sizes:
            return self.sizes
        count = self.pp * self.virtual
        least, more = divmod(self.shape.layers, count)
        return [least + (stage < more) for stage in range(count)]
