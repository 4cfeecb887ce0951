"""How a rank runs its program: op by op, small ops fused, or compiled as a whole."""

from __future__ import annotations

from enum import StrEnum

from partita.compiler.errors import BadOptions


class Compilation(StrEnum):
    """How a rank's program runs.

    Attributes:
        EAGER: op by op, fused regions too.
        REGIONS: op by op; Inductor compiles the regions that the plan fuses, each when
            it first runs.
        WHOLE: Inductor compiles all of it, collectives included, before the first step.
        CUDA_GRAPH: so, too, and the kernels of a step on one GPU are then launched as
            one: where a model is small, launching takes longer than computing.
    """

    EAGER = "eager"
    REGIONS = "regions"
    WHOLE = "whole"
    CUDA_GRAPH = "cuda-graph"

    @property
    def is_whole(self) -> bool:
        """Whether Inductor compiles all of a program at once."""
        return self in (Compilation.WHOLE, Compilation.CUDA_GRAPH)

    @classmethod
    def parse(cls, text: str) -> Compilation:
        """Return the way that a text names.

        Raises:
            BadOptions: when there is no such way.
        """
        if text not in list(cls):
            raise BadOptions(f"compilation is {text!r}; want {', '.join(cls)}")
        return cls(text)
