"""What every node does on the axis of the microbatches: computed in parts, or whole.

On that axis nothing is exchanged: a microbatch knows its own part of the batch and what
every one of them makes alike. So a tensor stays as it is made, but for one that is
made whole and used in part, and for zeros, which are a sum of zeros. What the rules
leave open is chosen thus: as much as can be is computed in parts; what depends on
inputs alone and is asked for whole (the number of tokens that count) is computed of the
whole batch by every microbatch. Where nothing else does, what is made whole is a sum of
equal shares: a penalty of the parameters, a number that is added to the loss.

Of an input that is cut in halves later on, as one of pairs is, a microbatch has a part
of each half (piece_cuts.py).

A gradient and the loss add up (``P(sum)``), a buffer is written alike by all (``B``). A
model that needs more is refused: a batch norm, the root of a mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch import fx

from partita.compiler.errors import BadOptions
from partita.compiler.ir.in_time import AXIS, is_zeros
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Program,
    Value,
    info,
    operands,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Broadcast, Partial, Sharding, Split
from partita.compiler.ir.signature import AxisSignature, Signature, compose
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.rule import Call, RuleSet
from partita.compiler.rules.segments import segments_in
from partita.compiler.rules.signatures import axis_options, fits
from partita.compiler.search.equal_parts import EqualParts
from partita.compiler.search.needs_whole import check_output, needs_whole
from partita.compiler.search.piece_cuts import Cutting

_WHOLE, _SUM = Broadcast(), Partial()


class _Stuck(Exception):
    """A node has no signature for what its operands are."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(node)
        self.node = node


@dataclass
class Chooser:
    """Chooses for one program and one number of microbatches.

    Attributes:
        program: of the whole batch.
        rules: rows of the table, which may cut inputs in pieces.
        parts: the microbatches.
        made: what each tensor is on their axis.
        chosen: what each node does there.
    """

    program: Program
    rules: RuleSet
    parts: EqualParts
    made: dict[Value, Sharding] = field(default_factory=dict[Value, Sharding])
    chosen: dict[fx.Node, AxisSignature] = field(
        default_factory=dict[fx.Node, AxisSignature]
    )
    whole: set[fx.Node] = field(default_factory=set[fx.Node])
    sums: set[fx.Node] = field(default_factory=set[fx.Node])
    """What adds up over the microbatches, though it is made of whole tensors."""
    shares: set[fx.Node] = field(default_factory=set[fx.Node])
    """What takes of whole tensors an equal share in every microbatch."""
    cuts: dict[fx.Node, Split] = field(default_factory=dict[fx.Node, Split])
    """The pieces of which inputs are, of each of which a microbatch has its part."""
    summed: dict[fx.Node, set[fx.Node] | None] = field(
        default_factory=dict[fx.Node, "set[fx.Node] | None"]
    )
    in_parts: dict[Value, Sharding] = field(default_factory=dict[Value, Sharding])
    """How what was asked for whole would be made otherwise: others use it so."""
    known: dict[tuple[Call, Signature], tuple[AxisSignature, ...]] = field(
        default_factory=dict[tuple[Call, Signature], tuple[AxisSignature, ...]]
    )

    def choose(self) -> None:
        """Choose for all nodes.

        Raises:
            BadOptions: naming the op that needs the whole batch, or inputs that cannot
                be cut into so many equal parts.
        """
        self.parts.check_inputs()
        self.of_inputs = self._of_inputs()
        while True:
            try:
                self._forward()
            except _Stuck as stuck:
                self._ask(stuck.node)
                continue
            if not self._ask_for_summed_results():
                break
        self._compute_in_parts()
        for node, role in self.program.results():
            value = value_of(node)
            check_output(value, role, self.made[value], self.parts.count)

    def is_same_for(self, parts: EqualParts) -> bool:
        """Whether all that was asked has the same answer for other parts."""
        return all(
            parts.is_batch(node, role) == self.parts.is_batch(node, role)
            for node, role in self.program.placeholders()
        ) and all(
            self._allowed(call, seen, parts) == options
            for (call, seen), options in self.known.items()
        )

    # --- what enters

    def _of_inputs(self) -> set[fx.Node]:
        """Return the nodes that depend on no parameter."""
        found = {
            node
            for node, role in self.program.placeholders()
            if role.kind is not InputKind.PARAMETER
        }
        for node in self.program.calls():
            if all(value.node in found for value in operands(node)):
                found.add(node)
        return found

    # --- from what enters to what leaves

    def _forward(self) -> None:
        """Choose node by node, from what its operands are."""
        self.in_parts.clear()
        self.summed.clear()
        for node, role in self.program.placeholders():
            is_batch = self.parts.is_batch(node, role)
            part = self.cuts.get(node, Split(0)) if is_batch else _WHOLE
            entering = AxisSignature((), (part,))
            self._enter(node, entering, AxisSignature((), (_WHOLE,)))
        for node in self.program.calls():
            options = self._options(node)
            is_whole = all(self._had(value) == _WHOLE for value in operands(node))
            if is_whole and node not in self.sums:
                self._take(node, options[0])
                continue
            fitting = [o for o in options if self._is_seen(node, o)]
            if node in self.sums:
                fitting = [o for o in fitting if o.results == (_SUM,)]
            if not fitting and node not in self.whole:
                raise _Stuck(node)
            best = min(fitting, key=lambda o: self._sliced(node, o), default=options[0])
            self._enter(node, best, options[0])

    def _enter(
        self, node: fx.Node, in_parts: AxisSignature, whole: AxisSignature
    ) -> None:
        """Take what a node does, and note what it would be if it is asked for whole."""
        if node not in self.whole and node not in self.cuts:
            self._take(node, in_parts)
            return
        self._take(node, whole)
        for index, sharding in enumerate(in_parts.results):
            if isinstance(sharding, Split):
                self.in_parts[Value(node, index)] = sharding

    def _had(self, value: Value) -> Sharding:
        """Return what a tensor is to those who did not ask for all of it."""
        return self.in_parts.get(value, self.made[value])

    def _take(self, node: fx.Node, signature: AxisSignature) -> None:
        self.chosen[node] = signature
        for index, sharding in enumerate(signature.results):
            if sharding is not None:
                self.made[Value(node, index)] = sharding

    def _options(
        self, node: fx.Node, want: Sharding | None = None, index: int = 0
    ) -> tuple[AxisSignature, ...]:
        """Return what the rules allow, shares equal; everything whole comes first.

        Dims are cut at the segments at which the operands are, or the one result that
        is wanted.
        """
        have = [self._had(value) for value in operands(node)]
        results = [want if i == index else None for i in range(len(info(node).types))]
        seen = compose((AxisSignature(tuple(have), tuple(results)),))
        call = call_of(node)
        known = call, seen
        if known not in self.known:
            self.known[known] = self._allowed(call, seen, self.parts)
        return self.known[known]

    def _allowed(
        self, call: Call, seen: Signature, parts: EqualParts
    ) -> tuple[AxisSignature, ...]:
        rule, factors = rule_and_factors(self.rules, call)
        mesh = Mesh(**{AXIS: parts.count})
        return tuple(
            option.signature
            for option in axis_options(rule, factors, segments_in(seen, factors))
            if fits(factors, (option,), mesh)
            and parts.is_equal_work(call, option.signature)
        )

    def _is_seen(self, node: fx.Node, signature: AxisSignature) -> bool:
        """Whether the operands are as the signature wants them, or can be had so."""
        return all(
            self._is_had(value, want)
            or (node in self.shares and self._has_shares(value, want))
            for value, want in zip(operands(node), signature.operands, strict=True)
        )

    def _is_had(self, value: Value, want: Sharding) -> bool:
        is_slice = isinstance(want, Split) and self.made[value] == _WHOLE
        is_zero = want == _SUM and is_zeros(value.node)
        return want == self.made[value] or is_slice or is_zero

    def _has_shares(self, value: Value, want: Sharding) -> bool:
        """Whether a tensor can be a sum of equal shares of what every part makes."""
        is_float = type_of(value).dtype.is_floating_point
        return want == _SUM and self.made[value] == _WHOLE and is_float

    def _sliced(self, node: fx.Node, signature: AxisSignature) -> int:
        """Return the bytes of the operands that are used otherwise than they are."""
        return sum(
            type_of(value).num_bytes
            for value, want in zip(operands(node), signature.operands, strict=True)
            if want != self._had(value)
        )

    # --- where a node is stuck

    def _ask(self, node: fx.Node) -> None:
        """Note what else ``node`` needs.

        Raises:
            BadOptions: when that depends on a parameter.
        """
        ways = (
            self._ask_for_sums,
            self._ask_for_whole,
            self._ask_for_cuts,
            self._ask_for_shares,
        )
        if not any(ask(node) for ask in ways):
            count = self.parts.count
            raise BadOptions(needs_whole(self.program, node, self.made, count))

    def _ask_for_cuts(self, node: fx.Node) -> bool:
        """Have inputs cut in the pieces that ``node`` wants its operands in."""
        cutting = Cutting(self._options, self._is_had, self._may_cut)
        for option in self._options(node)[1:]:
            cuts = cutting.cuts_for(node, option)
            if cuts:
                self.cuts |= cuts
                return True
        return False

    def _may_cut(self, node: fx.Node, want: Split) -> bool:
        """Whether a placeholder can be in the pieces that are wanted."""
        role = dict(self.program.placeholders())[node]
        is_new = node not in self.cuts
        return is_new and want.dim == 0 and self.parts.is_batch(node, role)

    def _ask_for_shares(self, node: fx.Node) -> bool:
        """Have ``node`` add a share of whole operands, if it then has a signature."""
        before = len(self.shares)
        self.shares.add(node)
        if not any(self._is_seen(node, option) for option in self._options(node)[1:]):
            self.shares.remove(node)
        return len(self.shares) > before

    def _ask_for_sums(self, node: fx.Node) -> bool:
        """Have whole operands of ``node`` add up, if it then has a signature.

        As the gradient of a bias does. In a forward, what is added is a penalty.
        """
        if info(node).phase is Phase.FORWARD:
            return False
        found = [self._sums_for(node, option) for option in self._options(node)[1:]]
        best = min(filter(None, found), key=len, default=set[fx.Node]()) - self.sums
        self.sums |= best
        return bool(best)

    def _ask_for_summed_results(self) -> bool:
        """Have what is to leave as a sum add up; say whether anything now does."""
        before = len(self.sums)
        for node, role in self.program.results():
            value = value_of(node)
            if role.kind is OutputKind.GRADIENT and self.made[value] == _WHOLE:
                self.sums |= self._sums_to(value.node) or set()
        return len(self.sums) > before

    def _sums_to(self, node: fx.Node) -> set[fx.Node] | None:
        """Return what is to add up for a whole tensor to; ``None`` if it cannot."""
        if node in self.summed or node.op == "placeholder" or node in self.whole:
            return self.summed.get(node)
        options = (o for o in self._options(node, _SUM) if o.results == (_SUM,))
        ways = [w for o in options if (w := self._sums_for(node, o)) is not None]
        self.summed[node] = min(ways, key=len) | {node} if ways else None
        return self.summed[node]

    def _sums_for(self, node: fx.Node, option: AxisSignature) -> set[fx.Node] | None:
        """Return what is to add up so that ``node`` can do as an option says."""
        found = set[fx.Node]()
        for value, want in zip(operands(node), option.operands, strict=True):
            if self._is_had(value, want):
                continue
            is_whole = want == _SUM and self.made[value] == _WHOLE
            more = self._sums_to(value.node) if is_whole else None
            if more is None:
                return None
            found |= more
        return found

    def _ask_for_whole(self, node: fx.Node) -> bool:
        """Have ``node`` see the whole batch, if that depends on no parameter."""
        best: set[fx.Node] | None = None
        for option in self._options(node)[1:]:
            wrong = {
                value.node: want
                for value, want in zip(operands(node), option.operands, strict=True)
                if not self._is_had(value, want)
            }
            can_be = self.of_inputs.issuperset(wrong) and all(
                want == _WHOLE or isinstance(want, Split) for want in wrong.values()
            )
            if can_be and (best is None or len(wrong) < len(best)):
                best = set(wrong)
        if best is None and node in self.of_inputs:
            best = {node}
        self.whole |= set(_with_sources(best or ()))
        return best is not None

    # --- from what leaves to what enters

    def _compute_in_parts(self) -> None:
        """Compute in parts what was to be whole, where it is only used in parts."""
        leaving = {value_of(node) for node, _ in self.program.results()}
        roles = dict(self.program.placeholders())
        wanted: dict[Value, set[Sharding]] = {}
        for node in reversed(list(self.program.nodes())):
            value = Value(node, 0)
            asked = wanted.get(value, set())
            is_one = len(info(node).types) == 1 and len(asked) == 1
            if is_one and value not in leaving and self.made[value] == _WHOLE:
                (want,) = asked
                if want != _WHOLE and node in roles:
                    if want == Split(0) and self.parts.is_batch(node, roles[node]):
                        self._take(node, AxisSignature((), (want,)))
                elif want != _WHOLE:
                    self._take(node, self._in_parts(node, want))
            pairs = zip(operands(node), self.chosen[node].operands, strict=True)
            for used, want in pairs:
                wanted.setdefault(used, set()).add(want)

    def _in_parts(self, node: fx.Node, want: Sharding) -> AxisSignature:
        """Return the signature that makes just what is wanted, if there is one."""
        fitting = [
            option
            for option in self._options(node, want)
            if option.results == (want,) and self._is_seen(node, option)
        ]
        kept = self.chosen[node]
        return min(fitting, key=lambda o: self._sliced(node, o), default=kept)


def _with_sources(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Yield nodes and all that they are computed from."""
    seen, open_nodes = set[fx.Node](), list(nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node not in seen:
            seen.add(node)
            yield node
            open_nodes += [value.node for value in operands(node)]
