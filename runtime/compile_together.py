"""Compile the programs of all ranks as a whole: each program once on a machine.

Of the ranks of a machine that run one program the first compiles it, while the others
wait. Then these ask Inductor for it too, which finds it on disk; so does the next run,
in which nobody waits: what has been compiled has a mark beside Inductor's code. Where
the code is gone and the mark is not, all of them compile it. What the ranks tell each
other is a hash of the program. Where compiling fails on one, all hear of it and raise.

Inductor keeps the order in which collectives begin, and here it makes one of no two and
moves none: ranks with unlike programs would wait for each other for ever.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from partita.compiler.capture.torch_private import (
    Code,
    FakeMode,
    compile_graph,
    compiled_folder,
    static_fake_mode,
)
from partita.compiler.errors import CompilationFailed
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.rules.written_out import write_out
from partita.runtime.agree import everyone_tells
from partita.runtime.aligned_rows import align_rows
from partita.runtime.channels_last import by_channels
from partita.runtime.executor import Executable
from partita.runtime.feeds import FeedKey, Feeds
from partita.runtime.flat_graph import flatten
from partita.runtime.kept_copies import keep_copies
from partita.runtime.sent_masks import send_masks_as_bytes
from partita.runtime.sorted_rows import sort_rows
from partita.runtime.vector_trials import noted_trials
from partita.runtime.written_buffers import write_buffers

_OPTIONS: dict[str, Any] = {
    "reorder_for_compute_comm_overlap": False,
    "bucket_all_gathers_fx": "none",
    "bucket_reduce_scatters_fx": "none",
    "bucket_all_reduces_fx": "none",
}

# What is added to in every layer is kept where the next adds to it, not added up anew
# from the first: kernels of layers are alike, and C++ takes half a second to compile.
_ON_CPUS: dict[str, Any] = {"realize_reads_threshold": 3}

Values = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Compiled(Executable):
    """A program compiled as a whole.

    Attributes:
        taken: which of the program's inputs the code takes.
        laid_out: by position among these, the strides that it wants of what is fed anew
            in every step.
        code: what it was compiled to.
    """

    taken: tuple[int, ...]
    laid_out: tuple[tuple[int, tuple[int, ...]], ...]
    code: Code

    def compute(self, values: list[torch.Tensor | int]) -> Values:
        """Run on the values of the program's inputs; leave none there."""
        given: list[torch.Tensor] = []
        for position in self.taken:
            value = values[position]
            assert isinstance(value, torch.Tensor)
            given.append(value)
        for position, strides in self.laid_out:
            if given[position].stride() != strides:
                given[position] = _with_strides(given[position], strides)
        values.clear()
        return tuple(self.code(*given))


@dataclass(frozen=True)
class Chain:
    """Programs to compile, of which each may be fed what those before it save.

    Attributes:
        programs: bound.
        held: tensors that enter as they are in every step, parameters and the like.
        device: where everything is.
        written: buffers that the programs write themselves, at their end.
    """

    programs: Sequence[Executable]
    held: Mapping[FeedKey, torch.Tensor]
    device: torch.device
    written: frozenset[FeedKey] = frozenset()


@dataclass(frozen=True)
class _Wanted:
    """A program that is to be compiled, and tensors without values to do it for."""

    program: Executable
    graph: fx.GraphModule
    taken: tuple[int, ...]
    inputs: tuple[torch.Tensor, ...]
    held: frozenset[FeedKey]

    @cached_property
    def options(self) -> dict[str, Any]:
        """What Inductor is told of every graph on such a device."""
        is_on_cpus = all(x.device.type == "cpu" for x in self.inputs)
        return _OPTIONS | (_ON_CPUS if is_on_cpus else {})

    @cached_property
    def digest(self) -> str:
        """A hash of all that the code depends on."""
        types = [(x.shape, x.stride(), x.dtype, x.device.type) for x in self.inputs]
        stated = f"{self.graph.graph}{types}{self.options}{torch.__version__}"
        return hashlib.sha256(stated.encode()).hexdigest()

    def with_code(self, code: Code) -> Compiled:
        """Return the program with what it was compiled to."""
        program = self.program
        roles = [program.local.inputs[at] for at in self.taken]
        anew = [
            position
            for position, role in enumerate(roles)
            if (role.kind, role.name) not in self.held
        ]
        laid_out = tuple((at, self.inputs[at].stride()) for at in anew)
        return Compiled(program.local, program.own, self.taken, laid_out, code)


def compile_together(chains: Iterable[Chain]) -> list[tuple[Compiled, ...]]:
    """Return the programs of this rank compiled. All ranks call it, with their own.

    Raises:
        CompilationFailed: on all ranks, when it failed on one.
    """
    mode = static_fake_mode()
    wanted: list[list[_Wanted]] = []
    failure: Exception | None = None
    try:
        wanted += (_wanted_of(chain, mode) for chain in chains)
    except Exception as error:  # whatever it is, the others must hear of it
        failure = error
    _check_all(failure)
    every = {each.digest: each for own in wanted for each in own}
    marks = compiled_folder() / "partita"
    marked = {digest for digest in every if (marks / digest).exists()}
    machine = platform.node()
    told = everyone_tells((machine, tuple(every)))
    before = told[: dist.get_rank()]
    others = {x for where, digests in before if where == machine for x in digests}
    later = others - marked
    with noted_trials(marks):
        code = _compile({x: each for x, each in every.items() if x not in later}, mode)
        code |= _compile({x: each for x, each in every.items() if x in later}, mode)
    marks.mkdir(parents=True, exist_ok=True)
    for digest in every:
        (marks / digest).touch()
    return [tuple(each.with_code(code[each.digest]) for each in own) for own in wanted]


def _compile(wanted: Mapping[str, _Wanted], mode: FakeMode) -> dict[str, Code]:
    """Compile these while the other ranks compile theirs; return code by digest.

    Raises:
        CompilationFailed: on all ranks, when it failed on one.
    """
    code: dict[str, Code] = {}
    failure: Exception | None = None
    try:
        for digest, each in wanted.items():
            options = each.options | align_rows(each.graph, each.inputs, mode)
            code[digest] = compile_graph(each.graph, each.inputs, mode, options)
    except Exception as error:  # whatever it is, the others must hear of it
        failure = error
    _check_all(failure)
    return code


def _check_all(failure: Exception | None) -> None:
    """Check that no rank has failed. All ranks call it.

    Raises:
        CompilationFailed: when a rank says that it has.
    """
    said = failure and f"{type(failure).__name__}: {failure}"
    for rank, heard in enumerate(everyone_tells(said)):
        if heard is not None:
            raise CompilationFailed(
                f"rank {rank} cannot compile its program as a whole; choose "
                f"compilation='regions' or 'eager': {heard}"
            ) from failure


def _wanted_of(chain: Chain, mode: FakeMode) -> list[_Wanted]:
    with mode:
        known = {key: _like(x) for key, x in chain.held.items()}
    found: list[_Wanted] = []
    for program in chain.programs:
        graph, taken = flatten(program.local)
        write_buffers(graph.graph, program.local, taken, chain.written)
        with mode:
            inputs = tuple(_entering(program.local, at, known, chain) for at in taken)
        send_masks_as_bytes(graph, inputs, mode)
        sort_rows(graph, inputs, mode)
        keep_copies(graph, inputs, mode)
        graph = write_out(graph, inputs, mode)
        stays = [role.kind is not OutputKind.SAVED for role in program.local.outputs]
        graph = by_channels(graph, inputs, mode, stays)
        found.append(_Wanted(program, graph, taken, inputs, frozenset(chain.held)))
        if program is not chain.programs[-1]:
            known |= _saved(found[-1], mode)
    return found


def _entering(local: LocalProgram, at: int, known: Feeds, chain: Chain) -> torch.Tensor:
    """Return a tensor like the one that enters there; what is not known is dense."""
    role = local.inputs[at]
    like = known.get((role.kind, role.name))
    if isinstance(like, torch.Tensor):
        return like
    type_, placement = local.input_types[at], local.input_placements[at]
    assert type_ is not None
    assert placement is not None
    shape = shard_shape(type_.shape, placement, local.mesh, local.coordinates)
    return torch.empty(shape, dtype=type_.dtype, device=chain.device)


def _saved(wanted: _Wanted, mode: FakeMode) -> dict[FeedKey, torch.Tensor]:
    """Return what a program saves for those behind it, without values."""
    with mode, torch.no_grad():
        made = wanted.graph.forward(*wanted.inputs)
        return {
            (InputKind.SAVED, role.name): _like(value)
            for role, value in zip(wanted.program.local.outputs, made, strict=True)
            if role.kind is OutputKind.SAVED and value is not None
        }


def _like(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the type and strides of ``x``, with memory of its own."""
    strides = x.stride()
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)


def _with_strides(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a copy of ``x`` laid out so."""
    copy = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
    return copy.copy_(x)
