"""What an assignment holds in memory, tensor by tensor, and what could be made again.

A *holding* is memory: a tensor as a node makes it, or a boxed copy of it. A view holds
nothing of its own; its uses count for what it is a view of. What a kernel takes while
it runs is a holding, too, that is there during that call alone. What is fed and what
another stage hands over is there from the start.

Behind the calls come two moments more: what leaves is handed over, what was fed still
being there, and the optimizer steps, beside gradients and the loss. Gradients that do
not lie in order are copied when they are handed over.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.cost.optimizer_memory import update_bytes
from partita.compiler.ir.program import OutputKind, Phase, info
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import boxing_key
from partita.compiler.search.lies import Lies
from partita.compiler.search.moments import Moments
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import made_placement
from partita.compiler.search.state import States
from partita.compiler.search.workspaces import Workspaces


@dataclass(slots=True)
class Holding:
    """Memory of one rank, from ``first`` to its last use.

    Attributes:
        keys: of the node or boxing that makes it, then of the views of it that the
            forward takes: what ``Found.recompute`` lists to make it again. None where
            it is what a kernel takes for itself, or the copy of a gradient.
        maker: one number for all that one node makes.
        num_bytes: on the rank that holds most.
        first: the call at which it is made, -1 for what enters.
        seconds: what making it again takes; infinite for what enters.
        sources: the holdings that are needed to make it again.
        forward: the last call of the forward that uses it.
        backward: the calls of the backward that use it.
        workspace_bytes: what its kernel takes besides; with the first of a maker.
        is_copy: whether a boxing makes it.
        is_fed: whether it is an input of the model, there for all microbatches.
        alike: what it has in common with those of other blocks that choose alike;
            ``None`` where it is by itself.
    """

    keys: list[str]
    maker: int
    num_bytes: int
    first: int
    seconds: float
    sources: list[int]
    forward: int
    backward: list[int] = field(default_factory=list[int])
    workspace_bytes: int = 0
    is_copy: bool = False
    is_fed: bool = False
    alike: Hashable = None


@dataclass(frozen=True)
class Holdings:
    """All holdings of an assignment.

    Attributes:
        holdings: in the order in which they are made.
        state_bytes: what is held all the time, what microbatches add up to included.
        update_bytes: what the optimizer's step takes besides.
        num_calls: of the program.
        num_forward: how many of them come before the backward.
        num_live: how many microbatches there are at once. Each but one adds what lies
            between its forward and its backward.
    """

    holdings: tuple[Holding, ...]
    state_bytes: int
    update_bytes: int
    num_calls: int
    num_forward: int
    num_live: int = 1

    @property
    def moments(self) -> Moments:
        """The numbers of the moments of a step."""
        return Moments(self.num_forward)

    @property
    def most(self) -> int:
        """What all tensors would take together."""
        tensors = (one.num_bytes for one in self.holdings if one.keys)
        return self.state_bytes + sum(tensors)


def find_holdings(
    posed: Posed,
    choices: Sequence[int],
    optimizer: str,
    class_of: Sequence[int] | None = None,
    num_live: int = 1,
) -> Holdings:
    """Return what the ranks of an assignment hold.

    Args:
        posed: the problem.
        choices: one per node of it.
        optimizer: what holds moments of every parameter.
        class_of: per node, the class of those that choose alike, if any do.
        num_live: microbatches that there are at once.
    """
    found = _Finder(posed, choices, optimizer, class_of).find()
    return replace(found, num_live=num_live)


class _Finder:
    def __init__(
        self,
        posed: Posed,
        choices: Sequence[int],
        optimizer: str,
        class_of: Sequence[int] | None,
    ) -> None:
        self.posed = posed
        self.class_of = class_of
        self.nodes = posed.problem.nodes
        self.mesh = posed.problem.mesh
        self.optimizer = optimizer
        self.workspaces = Workspaces(posed)
        self.lies = Lies(posed)
        self.let_go = posed.let_go
        self.chosen = [
            node.choices[choice]
            for node, choice in zip(self.nodes, choices, strict=True)
        ]
        self.found: list[Holding] = []
        self.of_value: dict[tuple[int, int], int] = {}
        self.added: set[tuple[int, int]] = set()
        self.copies: dict[tuple[int, int, Placement], int] = {}
        self.made_at: dict[tuple[int, int], int] = {}

    def find(self) -> Holdings:
        states = States(self.posed, self.optimizer)
        state = time = num_forward = 0
        updated: list[int] = []
        for index, item in enumerate(self.posed.items):
            if not isinstance(item, fx.Node):
                self._leave(index, time, item.kind)
            elif item.op == "placeholder":
                own = states.of(index, self.chosen[index])
                stays = index in states.entering
                state += own.num_bytes if stays else 0
                if own.updated_bytes is not None:
                    updated.append(own.updated_bytes)
                passing = 0 if stays else own.num_bytes
                self.of_value[index, 0] = self._new(
                    [info(item).key], passing, -1, float("inf"), []
                )
            else:
                self._call(index, item, time)
                time += 1
                if info(item).phase is Phase.FORWARD:
                    num_forward = time
        for index in states.fed:
            self._note(self.of_value[index, 0], time, in_backward=True)
            self.found[self.of_value[index, 0]].is_fed = True
        state += sum(self._bytes(value, self._made(value)) for value in self.added)
        device = self.posed.candidates.hardware.device.kind
        update = update_bytes(self.optimizer, updated, device)
        return Holdings(tuple(self.found), state, update, time, num_forward)

    def _call(self, index: int, item: fx.Node, time: int) -> None:
        node, signature = self.nodes[index], self.chosen[index].signature
        self.made_at |= {(index, at): time for at in range(len(node.result_types))}
        in_backward = info(item).phase is not Phase.FORWARD
        sources = [
            self._use(value, want, time, in_backward)
            for value, want in zip(node.operands, signature.operands, strict=True)
        ]
        if sources and may_share_memory(item.target):
            for result, type_ in enumerate(node.result_types):
                if type_ is not None:
                    self.of_value[index, result] = sources[0]
            if not in_backward:
                self.found[sources[0]].keys.append(info(item).key)
            return
        seconds = self.chosen[index].seconds - self.chosen[index].broken_s
        maker = len(self.found)
        for result, type_ in enumerate(node.result_types):
            if type_ is None:
                continue
            value = index, result
            num_bytes = self._bytes(value, self._made(value))
            new = self._new([info(item).key], num_bytes, time, seconds, sources, maker)
            self.found[new].alike = self._alike(index)
            self.of_value[value] = new
        workspace = self.workspaces.of(index, self.chosen[index])
        if workspace:
            self.found[maker].workspace_bytes = workspace
            self._new([], workspace, time, float("inf"), [])

    def _leave(self, index: int, time: int, kind: OutputKind) -> None:
        (value,) = self.nodes[index].operands
        (want,) = self.chosen[index].signature.operands
        if index in self.let_go and want == self._made(value):
            return
        in_backward = kind is OutputKind.GRADIENT
        made_at = self.made_at.get(value, 0)  # boxed right there
        if self.nodes[index].times < self.posed.candidates.program.in_time.count:
            self.added.add(value)
            self._note(self.of_value[value], made_at, in_backward)
            self.found[self.of_value[value]].seconds = float("inf")
            return
        holding = self.found[self._use(value, want, made_at, in_backward)]
        holding.seconds = float("inf")  # it leaves, and is held until then
        holding.backward.append(time + kind.is_kept)
        if want == self._made(value) and self.lies.is_copied(index, want):
            self._new([], self._bytes(value, want), time, float("inf"), [])

    def _use(
        self, value: tuple[int, int], want: Placement, time: int, in_backward: bool
    ) -> int:
        """Note a use, boxing the tensor where it is wanted otherwise than made."""
        at = self.of_value[value]
        made = self._made(value)
        if want != made:
            copy = (*value, want)
            if copy not in self.copies:
                type_ = self.nodes[value[0]].result_types[value[1]]
                assert type_ is not None
                key = boxing_key(self.nodes[value[0]].key, value[1], want)
                seconds = self.posed.problem.box_seconds(type_, made, want)
                seconds *= self.posed.candidates.program.in_time.count
                num_bytes = self._bytes(value, want)
                self.copies[copy] = self._new([key], num_bytes, time, seconds, [at])
                self.found[self.copies[copy]].is_copy = True
                self.found[self.copies[copy]].alike = self._alike(*copy)
                self._note(at, time, in_backward)
            at = self.copies[copy]
        self._note(at, time, in_backward)
        return at

    def _note(self, at: int, time: int, in_backward: bool) -> None:
        holding = self.found[at]
        if in_backward:
            holding.backward.append(time)
        else:
            holding.forward = max(holding.forward, time)

    def _new(
        self,
        keys: list[str],
        num_bytes: int,
        first: int,
        seconds: float,
        sources: Sequence[int],
        maker: int | None = None,
    ) -> int:
        number = len(self.found)
        own = number if maker is None else maker
        self.found.append(
            Holding(keys, own, num_bytes, first, seconds, [*sources], first)
        )
        return number

    def _alike(self, node: int, *rest: Hashable) -> Hashable:
        return None if self.class_of is None else (self.class_of[node], *rest)

    def _made(self, value: tuple[int, int]) -> Placement:
        return made_placement(self.chosen[value[0]], value[1])

    def _bytes(self, value: tuple[int, int], placement: Placement) -> int:
        type_ = self.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return held_bytes(type_, placement, self.mesh)
