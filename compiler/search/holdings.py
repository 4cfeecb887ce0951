"""What an assignment holds in memory, tensor by tensor, and what could be made again.

A *holding* is memory: a tensor as a node makes it, or a boxed copy of it. A view holds
nothing of its own; its uses count for what it is a view of. What a kernel takes while
it runs is a holding, too, that is there during that call alone. What is fed and what
another stage hands over is there from the start.

Behind the calls come two moments more: what leaves is handed over, what was fed still
being there, and the optimizer steps, beside gradients and the loss. Gradients that do
not lie in order are copied when they are handed over. What microbatches add up to is
there from the start; behind the last of them, when what was fed is gone, one sum after
the other is brought to where it leaves.
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
from partita.compiler.search.boxed import Boxings
from partita.compiler.search.call_times import CallTimes
from partita.compiler.search.moments import Moments
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import made_placement
from partita.compiler.search.state import States
from partita.compiler.search.workspaces import Workspaces


@dataclass(slots=True)
class Holding:
    """Memory of one rank, from ``first`` to its last use, which are places.

    Attributes:
        keys: of the node or boxing that makes it, then of the views of it that the
            forward takes: what ``Found.recompute`` lists to make it again. None where
            it is what a kernel takes for itself, what is held for a boxing, or the copy
            of a gradient.
        maker: one number for all that one node makes.
        num_bytes: on the rank that holds most.
        first: where it is made; before all for what enters.
        seconds: what making it again takes; infinite for what enters.
        sources: the holdings that are needed to make it again.
        forward: the last use of the forward.
        backward: the uses of the backward.
        workspace_bytes: what its kernel takes besides; with the first of a maker. Of a
            copy, what it takes to be there at last.
        opening_bytes: what a copy takes a moment before it is there, beside its source.
        boxed_at: of a copy, where it is boxed for a use, by the use.
        through: the first view of a copy in the forward, if it has one.
        is_copy: whether a boxing makes it.
        is_fed: whether it is there for all microbatches, as an input of the model is,
            or what they add up to.
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
    opening_bytes: int = 0
    boxed_at: dict[int, int] = field(default_factory=dict[int, int])
    through: int | None = None
    is_copy: bool = False
    is_fed: bool = False
    alike: Hashable = None


@dataclass(frozen=True)
class Holdings:
    """All holdings of an assignment.

    Attributes:
        holdings: in the order in which they are made.
        state_bytes: what is held all the time.
        update_bytes: what the optimizer's step takes besides.
        num_calls: of the program.
        num_forward: how many of them come before the backward.
        num_live: how many microbatches there are at once. Each but one adds what lies
            between its forward and its backward.
        before: the moments of boxings before a call.
        behind: those behind it.
    """

    holdings: tuple[Holding, ...]
    state_bytes: int
    update_bytes: int
    num_calls: int
    num_forward: int
    num_live: int = 1
    before: int = 0
    behind: int = 0

    @property
    def moments(self) -> Moments:
        """The numbers of the moments of a step."""
        return Moments(self.num_forward, self.before, self.behind)

    @property
    def forward_end(self) -> int:
        """The last moment of the forward, boxings of what leaves it aside."""
        return self.moments.of_call(self.num_forward - 1)

    @property
    def leaving(self) -> int:
        """The moment at which what leaves is handed over."""
        return self.moments.of_call(self.num_calls)

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
        self.times = posed.known(CallTimes)
        self.moments = self.times.moments
        self.workspaces = Workspaces(posed)
        self.lies = self.times.lies
        self.boxings = posed.known(Boxings)
        self.let_go = posed.let_go
        self.chosen = [
            node.choices[choice]
            for node, choice in zip(self.nodes, choices, strict=True)
        ]
        self.found: list[Holding] = []
        self.of_value: dict[tuple[int, int], int] = {}
        self.sums: dict[tuple[int, int], int] = {}
        self.complete: set[tuple[int, int, Placement]] = set()
        self.copies: dict[tuple[int, int, Placement], int] = {}

    def find(self) -> Holdings:
        states = States(self.posed, self.optimizer)
        state = time = 0
        before_all = self.moments.place_of(-1)
        updated: list[int] = []
        for index, item in enumerate(self.posed.items):
            if not isinstance(item, fx.Node):
                self._leave(index, item.kind)
            elif item.op == "placeholder":
                own = states.of(index, self.chosen[index])
                stays = index in states.entering
                state += own.num_bytes if stays else 0
                if own.updated_bytes is not None:
                    updated.append(own.updated_bytes)
                passing = 0 if stays else own.num_bytes
                self.of_value[index, 0] = self._new(
                    [info(item).key], passing, before_all, float("inf"), []
                )
            else:
                self._call(index, item, time)
                time += 1
        for index in states.fed:
            self._note(self.of_value[index, 0], self.times.fed_until, in_backward=True)
            self.found[self.of_value[index, 0]].is_fed = True
        device = self.posed.candidates.hardware.device.kind
        update = update_bytes(self.optimizer, updated, device)
        num_forward, before, behind = self.moments
        return Holdings(
            tuple(self.found),
            state,
            update,
            time,
            num_forward,
            before=before,
            behind=behind,
        )

    def _call(self, index: int, item: fx.Node, number: int) -> None:
        node, signature = self.nodes[index], self.chosen[index].signature
        in_backward = info(item).phase is not Phase.FORWARD
        time, boxed_before = self.moments.place_of(number), self.moments.boxed_before
        sources = [
            self._use(value, want, time, boxed_before(number, at), in_backward)
            for at, (value, want) in enumerate(
                zip(node.operands, signature.operands, strict=True)
            )
        ]
        if sources and may_share_memory(item.target):
            for result, type_ in enumerate(node.result_types):
                if type_ is not None:
                    self.of_value[index, result] = sources[0]
            if not in_backward:
                source = self.found[sources[0]]
                source.keys.append(info(item).key)
                source.through = time if source.through is None else source.through
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
            self._hold_while(time, workspace)

    def _leave(self, index: int, kind: OutputKind) -> None:
        (value,) = self.nodes[index].operands
        (want,) = self.chosen[index].signature.operands
        if index in self.let_go and want == self._made(value):
            return
        in_backward = kind is OutputKind.GRADIENT
        boxed_at = self.times.places[index]
        made_at = self.moments.place_of(self.moments.call_of(boxed_at))
        if self.times.is_sum(index):
            self._note(self.of_value[value], made_at, in_backward)
            self.found[self.of_value[value]].seconds = float("inf")
            self._complete(index, value, want)
            return
        is_boxed = want != self._made(value)
        time = boxed_at + 1 if is_boxed else made_at
        holding = self.found[self._use(value, want, time, boxed_at, in_backward)]
        holding.seconds = float("inf")  # it leaves, and is held until then
        end = len(self.times.calls)
        if not is_boxed and self.lies.is_copied(index, want):
            leaving = self.moments.place_of(end)
            holding.backward.append(leaving)
            new = self._new([], self._bytes(value, want), leaving, float("inf"), [])
            holding = self.found[new]
        holding.backward.append(self.moments.place_of(end + kind.is_kept))

    def _complete(self, index: int, value: tuple[int, int], want: Placement) -> None:
        """Hold what microbatches add up to, and what becomes of it behind them."""
        made, before_all = self._made(value), self.moments.place_of(-1)
        update = self.moments.place_of(len(self.times.calls) + 1)
        if value not in self.sums:
            num_bytes = self._bytes(value, made)
            new = self._new([], num_bytes, before_all, float("inf"), [])
            self.sums[value], self.found[new].is_fed = new, True
        if want == made:
            self._note(self.sums[value], update, in_backward=True)
            return
        boxed_at = self.times.completed[index]
        self._note(self.sums[value], boxed_at + 1, in_backward=True)
        if (*value, want) in self.complete:
            return
        self.complete.add((*value, want))
        boxed = self.boxings.of_sum(value, made, want)
        self._hold_while(boxed_at, boxed.first_bytes)
        self._hold_while(boxed_at + 1, boxed.rest_bytes)
        num_bytes = self._bytes(value, want)
        new = self._new([], num_bytes, boxed_at + 1, float("inf"), [])
        self._note(new, update, in_backward=True)

    def _use(
        self,
        value: tuple[int, int],
        want: Placement,
        time: int,
        boxed_at: int,
        in_backward: bool,
    ) -> int:
        """Note a use, boxing the tensor where it is wanted otherwise than made.

        Args:
            value: the tensor.
            want: how it is wanted.
            time: the place of its user.
            boxed_at: where it is boxed for that.
            in_backward: whether the user is of the backward.
        """
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
                boxed, there = self.boxings.of(value, made, want), boxed_at + 1
                num_bytes = self._bytes(value, want) + boxed.padding_bytes
                new = self._new([key], num_bytes, there, seconds, [at])
                self.copies[copy], made_so = new, self.found[new]
                made_so.is_copy, made_so.alike = True, self._alike(*copy)
                made_so.opening_bytes = boxed.first_bytes
                made_so.workspace_bytes = boxed.rest_bytes
                self._hold_while(boxed_at, boxed.first_bytes)
                self._hold_while(there, boxed.rest_bytes)
                self._hold_while(there + 1, boxed.sent_bytes, time)
                self._note(at, boxed_at, in_backward)
            at = self.copies[copy]
            self.found[at].boxed_at.setdefault(time, boxed_at)
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

    def _hold_while(self, first: int, num_bytes: int, last: int | None = None) -> None:
        """Hold what has no name of its own, from one place to another."""
        if num_bytes:
            new = self._new([], num_bytes, first, float("inf"), [])
            self.found[new].forward = max(first, first if last is None else last)

    def _alike(self, node: int, *rest: Hashable) -> Hashable:
        return None if self.class_of is None else (self.class_of[node], *rest)

    def _made(self, value: tuple[int, int]) -> Placement:
        return made_placement(self.chosen[value[0]], value[1])

    def _bytes(self, value: tuple[int, int], placement: Placement) -> int:
        type_ = self.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return held_bytes(type_, placement, self.mesh)
