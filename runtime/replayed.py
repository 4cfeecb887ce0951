"""Compiled code replayed as one CUDA graph: one launch for all kernels of a step.

A graph reads and writes where it did when it was recorded. So what is another tensor in
every step is copied to one place first, and what is made is copied away before anyone
has it: no later step changes what a user keeps. Parameters are read where they lie, and
where they have moved the graph is recorded anew.

Source: the CUDA programming guide, "CUDA Graphs"; torch's notes on CUDA semantics,
"Whole-network capture", whose warm-up on another stream this is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from partita.compiler.capture.torch_private import Code
from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh

Values = tuple[torch.Tensor | None, ...]

_WARM_UP = 2


def check_replayable(mesh: Mesh, microbatches: int, device: torch.device) -> None:
    """Refuse what no graph is recorded of.

    Args:
        mesh: of all ranks.
        microbatches: of a step.
        device: this rank's.

    Raises:
        BadOptions: for another device than a GPU, several ranks, or microbatches.
    """
    why = ""
    if device.type != "cuda":
        why = f"the program runs on {device.type!r}"
    elif mesh.size > 1:
        why = f"the plan is for the {mesh.size} ranks of {mesh}"
    elif microbatches > 1:
        why = f"the plan cuts the batch into {microbatches} microbatches"
    if why:
        raise BadOptions(
            "compilation='cuda-graph' replays the whole batch's step on one rank with "
            f"a GPU, and {why}; choose 'whole'"
        )


@dataclass(frozen=True)
class _Recorded:
    """A graph, where its inputs lie, and what it makes.

    Attributes:
        held: the addresses of inputs that are the same in every step.
        entering: the tensors that the others are copied to.
    """

    graph: torch.cuda.CUDAGraph
    held: tuple[int, ...]
    entering: list[torch.Tensor]
    made: Values

    def replay(self, anew: list[torch.Tensor]) -> Values:
        """Run on new inputs; return copies of what is made."""
        _copy(self.entering, anew)
        self.graph.replay()
        found = [None if x is None else torch.empty_like(x) for x in self.made]
        _copy(_tensors(found), _tensors(self.made))
        return tuple(found)


class Replayed:
    """Code that is recorded when it first runs, and replayed from then on.

    Args:
        code: takes and makes tensors on one GPU, and writes to none that it takes.
        anew: the positions of what is another tensor in every step.
    """

    def __init__(self, code: Code, anew: Sequence[int]) -> None:
        self._code = code
        self._anew = tuple(anew)
        self._recorded: _Recorded | None = None

    def __call__(self, *given: torch.Tensor) -> Values:
        """Run on the values of the code's inputs."""
        held = tuple(x.data_ptr() for at, x in enumerate(given) if at not in self._anew)
        if self._recorded is None or self._recorded.held != held:
            self._recorded = None  # its memory is free before more is taken
            self._recorded = self._record(given, held)
        return self._recorded.replay([given[at] for at in self._anew])

    def _record(
        self, given: Sequence[torch.Tensor], held: tuple[int, ...]
    ) -> _Recorded:
        inputs = list(given)
        for at in self._anew:
            inputs[at] = given[at].clone()
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                self._code(*inputs)
        here.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = tuple(self._code(*inputs))
        return _Recorded(graph, held, [inputs[at] for at in self._anew], made)


def _copy(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    if to:
        torch.ops.aten._foreach_copy_.default(to, values)


def _tensors(values: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
    return [x for x in values if x is not None]
