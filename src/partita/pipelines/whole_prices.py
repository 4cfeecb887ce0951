"""What calls take and hold, as the plan of the whole model as one stage says.

By that a first cut is chosen; what its stages take they say themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from partita.compiler.cost.memory import timeline
from partita.compiler.cost.timeline import Category
from partita.compiler.cost.transfer import hop_seconds
from partita.compiler.errors import NoSolution
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.transfer import Placed
from partita.compiler.plan.document import Ref
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import completes
from partita.compiler.search.cut import Cut, Pipeline, find_cut
from partita.compiler.search.cut_line import Line
from partita.compiler.search.cut_memory import CutMemory

_STATE = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER)


@dataclass(frozen=True)
class WholePrices:
    """What a plan of one stage says of the calls along a line."""

    alone: Plan
    line: Line
    _fastest: dict[int, Cut] = field(default_factory=dict[int, Cut])

    def cut(
        self, live: tuple[int, ...], limit: int | None, stages_per_rank: int
    ) -> Cut:
        """Return the best cut into as many stages as ``live`` has microbatches of.

        Under a memory limit it is the best of those whose stages fit as they are; where
        none does, the best of all, since stages may yet be stored or made otherwise.

        Raises:
            NoSolution: when there are fewer calls than stages.
        """
        if limit is not None:
            of_one = limit // stages_per_rank
            held = CutMemory(*self._held, live, of_one)
            try:
                return find_cut(self.line, self._priced, len(live), held)
            except NoSolution:
                pass
        if len(live) not in self._fastest:
            found = find_cut(self.line, self._priced, len(live))
            self._fastest[len(live)] = found
        return self._fastest[len(live)]

    @cached_property
    def _held(self) -> tuple[dict[str, int], dict[str, int]]:
        """What is held of each parameter, and of what each call makes."""
        state: dict[str, int] = {}
        saved: dict[str, int] = {}
        alone = self.alone
        whole = {part: key for key, e in alone.expanded.items() for part in e.nodes}
        maker = {boxing.key: boxing.producer for boxing in alone.boxings}
        for held in timeline(alone).held:
            if held.category in _STATE:
                name = held.key.removeprefix(f"{OutputKind.GRADIENT}:")
                state[name] = state.get(name, 0) + held.num_bytes
            elif held.category is Category.SAVED:
                key = maker.get(held.key) or Ref.parse(held.key).key
                key = whole.get(key, key)
                saved[key] = saved.get(key, 0) + held.num_bytes
        return state, saved

    @cached_property
    def _priced(self) -> Pipeline:
        """What calls take."""
        alone, count = self.alone, self.alone.microbatches
        taken = {
            key: node.seconds / count
            for key, node in alone.nodes.items()
            if node.role is None
        }
        for key, whole in alone.expanded.items():
            taken[key] = sum(taken[part] for part in whole.nodes)
        for boxing in alone.boxings:
            if boxing.producer in taken and not completes(boxing):
                taken[boxing.producer] += boxing.seconds / count
        return Pipeline(count, taken, self._hop_seconds)

    def _hop_seconds(self, num_bytes: int) -> float:
        """Return the time of so many bytes between neighbours, spread over ranks."""
        size = self.alone.mesh.size
        spread = Placement.parse("(S(0),)")
        flat = Mesh(rank=size)
        source = Placed(flat, tuple(range(size)), spread)
        target = Placed(flat, tuple(range(size, 2 * size)), spread)
        hardware = load_hardware(self.alone.hardware)
        return hop_seconds((num_bytes,), torch.uint8, source, target, hardware)
