"""Parameters that the step receives in another placement than they are updated in.

What the optimizer updates stays where it is, a shard say; the step is fed a copy that
collectives make of it. A copy is made at the first need after the parameter changed,
and kept until it changes again: steps that add up gradients share one. Every rank
makes the same copies in the same order, since every rank updates its part.

A parameter changed when an optimizer that has it made a step (fused ones leave torch's
version counter as it is), when the counter moved, or when its memory is another.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Placement
from partita.runtime.executor import Values, bind_program
from partita.runtime.feeds import FeedKey, Feeds
from partita.runtime.groups import Groups


class Brought:
    """The copies of the parameters that ``programs`` bring into the step.

    Args:
        programs: as ``passes/bring_parameters.py`` writes them; those of a bucket are
            brought together.
        groups: the ranks, bound.
    """

    def __init__(self, programs: Sequence[LocalProgram], groups: Groups) -> None:
        self._programs = [(_keys(p), bind_program(p, groups)) for p in programs]
        self._versions: dict[FeedKey, tuple[int, int]] = {}
        self._copies: dict[FeedKey, torch.Tensor] = {}
        self._keys: dict[int, FeedKey] = {}
        if programs:
            self._watch_optimizers()

    def feeds(self, state: Mapping[FeedKey, torch.Tensor]) -> Feeds:
        """Return the copies of what is in ``state``, made anew where that changed."""
        for keys, program in self._programs:
            self._keys |= {id(state[key]): key for key in keys}
            versions = {key: _version_of(state[key]) for key in keys}
            if any(self._versions.get(key) != versions[key] for key in keys):
                for key in keys:
                    self._copies.pop(key, None)  # not both at once
                values = program.run({key: state[key] for key in keys})
                self._copies |= copies_of(program.local, values)
                self._versions |= versions
        return self._copies

    def release(self) -> None:
        """Let go of all copies; the next need makes them again."""
        self._copies.clear()
        self._versions.clear()

    def _watch_optimizers(self) -> None:
        """Have every optimizer's step make the copies of its parameters old."""
        this = weakref.ref(self)

        def stepped(optimizer: Optimizer, *_: Any) -> None:
            brought = this()
            if brought is not None:
                brought._note_step(optimizer)

        weakref.finalize(self, register_optimizer_step_post_hook(stepped).remove)

    def _note_step(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                key = self._keys.get(id(parameter))
                if key is not None:
                    self._versions.pop(key, None)


def _version_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what changes with the values: how often they did, and where they are."""
    return tensor._version, tensor.data_ptr()


def held_placements(programs: Sequence[LocalProgram]) -> dict[str, Placement]:
    """Return in which placement the parameters are that ``programs`` bring."""
    found: dict[str, Placement] = {}
    for program in programs:
        entering = zip(program.inputs, program.input_placements, strict=True)
        for role, placement in entering:
            if role.kind is InputKind.PARAMETER:
                assert placement is not None
                found[role.name] = placement
    return found


def copies_of(program: LocalProgram, values: Values) -> dict[FeedKey, torch.Tensor]:
    """Return what a program that brings parameters made, by the parameter."""
    pairs = zip(_keys(program), values, strict=True)
    return {key: value for key, value in pairs if value is not None}


def _keys(program: LocalProgram) -> tuple[FeedKey, ...]:
    """Return the parameters of a program, in the order in which it returns them."""
    kind = InputKind.PARAMETER
    return tuple((r.kind, r.name) for r in program.inputs if r.kind is kind)
