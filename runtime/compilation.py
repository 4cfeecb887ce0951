"""How a rank runs its program: op by op, small ops fused, or compiled as a whole."""

from __future__ import annotations

from enum import StrEnum

from partita.compiler.errors import BadOptions
from partita.compiler.plan.asked import find_asked
from partita.compiler.plan.document import Document


class Compilation(StrEnum):
    """How a rank's program runs.

    Attributes:
        EAGER: op by op, fused regions too.
        REGIONS: op by op; Inductor compiles the regions that the plan fuses, each when
            it first runs.
        WHOLE: Inductor compiles all of it, collectives included, before the first step.
        CUDA_GRAPH: so, too, and the kernels of a step on one GPU are then launched as
            one: where a model is small, launching takes longer than computing.
        AUTO: what ``for_plan`` says; what then cannot be compiled as a whole runs in
            regions.
    """

    EAGER = "eager"
    REGIONS = "regions"
    WHOLE = "whole"
    CUDA_GRAPH = "cuda-graph"
    AUTO = "auto"

    @property
    def is_whole(self) -> bool:
        """Whether Inductor compiles all of a program at once."""
        return self not in (Compilation.EAGER, Compilation.REGIONS)

    def for_plan(self, document: Document) -> Compilation:
        """Return how a plan's program runs.

        As a whole it is faster than in regions, 1.8 times with layers 64 wide on one
        rank, by some hundredths where ranks send much (benchmarks/bench_training.py).
        Nothing is taken as a whole where the plan may not fuse ops, whose roundings are
        those of the model then, nor where memory matters: with a limit, with what is
        made again, or with parameters that a pin has gathered for their use. The order
        in which a plan says what is held is not Inductor's.
        """
        if self is not Compilation.AUTO:
            return self
        options = document.options
        is_whole = len(document.stages) == 1 and options.fuse
        is_roomy = options.memory_bytes is None and not document.recompute
        if is_whole and is_roomy and not _gathers_as_asked(document):
            return self
        return Compilation.REGIONS

    @classmethod
    def parse(cls, text: str) -> Compilation:
        """Return the way that a text names.

        Raises:
            BadOptions: when there is no such way.
        """
        if text not in list(cls):
            raise BadOptions(f"compilation is {text!r}; want {', '.join(cls)}")
        return cls(text)


def _gathers_as_asked(document: Document) -> bool:
    """Whether a parameter is gathered for its use since a pin has it stored apart."""
    nodes = (document.nodes.get(key) for key in find_asked(document))
    roles = (node.role for node in nodes if node is not None)
    named = (document.parameters.get(role.name) for role in roles if role is not None)
    placed = (parameter.placements for parameter in named if parameter is not None)
    return any(each.use != each.storage for each in placed)
