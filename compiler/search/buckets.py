"""Which boxings are sent together: those of gradients, and the gathers of parameters.

Tensors go into a bucket in the order in which the program has them, so that those of
one bucket are ready at about one time, until it holds enough bytes; the next goes into
another. What is that large by itself stays alone. So there are at most as many
collectives of one way as it has times as many bytes, and one.

Where nothing passes beside computing it is the same what is in which, but for the
memory that the largest takes: as many buckets are filled evenly there.

All of them make the fewest messages. A tensor pays in a bucket if that takes less by
one more of it than by itself: a message less has to pay for the copies into the buffer
and out of it. What is saved so has to be more than the one message that all have
together.

Source: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020, section 3.2.3: buckets in the order of the backward, of 25 MB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import repeat
from math import ceil

from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.buckets import bucket_sent, is_shared, way_of
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import Unit, completing, units_alone
from partita.compiler.plan.uses import boxings_by_use, type_of

_GRADIENTS = frozenset(str(kind) for kind in OutputKind if kind.is_gradient)
_PARAMETERS = (InputKind.PARAMETER, InputKind.SHARED)

Buckets = tuple[tuple[str, ...], ...]
"""Keys of boxings, by bucket."""


@dataclass(frozen=True)
class Packing:
    """What of a plan of one stage goes into buckets, of whatever size.

    ``ways`` are the boxings that can be in one bucket, in the order in which they are
    made.
    """

    ways: tuple[tuple[Packed, ...], ...]

    @classmethod
    def of(cls, document: Document, units: Sequence[Unit] | None = None) -> Packing:
        """Return what goes together; buckets of ``document`` do not count.

        ``units`` are those of ``units_alone``, where they are known.
        """
        document = replace(document, buckets=())
        units = units_alone(document) if units is None else units
        ways = (
            tuple(Packed(boxing, *kind.figures) for boxing, kind in alike)
            for alike in _alike(document, units)
        )
        return cls(tuple(ways))

    def into(self, most_bytes: int) -> Buckets:
        """Return the buckets of all, as keys of boxings: the fewest, filled evenly."""
        return _keys([*map(_evened, self.ways, repeat(most_bytes))])

    def paying(self, most_bytes: int) -> Buckets:
        """Return the buckets of those that pay, as long as the bucket does."""
        ways = (tuple(one for one in way if one.saved_s > 0) for way in self.ways)
        return _keys([_filled(way, most_bytes) for way in ways], _pays)


@dataclass(frozen=True)
class Packed:
    """A boxing that can be in a bucket.

    Attributes:
        boxing: of a tensor.
        held_bytes: what it adds to the buffer: what a rank puts in, or gets.
        saved_s: what it takes by itself, less what it adds to a bucket.
        shared_s: what a bucket takes but for what its boxings add.
    """

    boxing: Boxing
    held_bytes: int
    saved_s: float
    shared_s: float


@dataclass(frozen=True, slots=True)
class _Kind:
    """What boxings of one type, source and lowering have alike.

    ``way`` is what those of one bucket have equal, ``figures`` are those of ``Packed``.
    """

    way: object
    figures: tuple[int, float, float]


_Members = list[tuple[Boxing, _Kind]]


def _alike(document: Document, units: Sequence[Unit]) -> Iterator[_Members]:
    """Yield boxings that can be in one bucket, in the order in which they are made."""
    kind_of = _Kinds(document)
    body = [item for unit in units for item in unit if isinstance(item, Boxing)]
    entering = [boxing for boxing in document.boxings if boxing.enters]
    last = _last_calls(document)
    ways: dict[object, _Members] = {}
    for number, boxings in enumerate((body, completing(document), entering)):
        for boxing in boxings:
            use = _use(document, boxing, last)
            kind = None if use is None else kind_of(boxing)
            if kind is not None:
                ways.setdefault((number, use, kind.way), []).append((boxing, kind))
    yield from ways.values()


def _use(document: Document, boxing: Boxing, last: Set[str]) -> str | None:
    """Return what a tensor is boxed for; ``None`` where it can wait for no other."""
    if boxing.enters:
        return "enters"
    if all(user in last or _is_gradient(user) for user in boxing.consumers):
        return "gradient"
    role = document.nodes[boxing.producer].role
    first = document.nodes.get(boxing.consumers[0])
    if role is None or role.kind not in _PARAMETERS or first is None:
        return None
    return "forward" if first.phase is Phase.FORWARD else "backward"


def _is_gradient(user: str) -> bool:
    return user.partition(":")[0] in _GRADIENTS


def _last_calls(document: Document) -> set[str]:
    """Return the calls behind which come gradients that leave, and nothing is sent.

    Nobody else waits for them: the view of a bias' gradient, say.
    """
    sent = {
        asks
        for asks, boxing in boxings_by_use(document).items()
        if any(step.payload for step in boxing.lowering)
    }
    are_sent_to = {consumer for consumer, _, _ in sent}
    waited_for: set[str] = set()
    for output in document.outputs:
        if output.value is not None and output.placement is not None:
            asks = str(output), output.value, output.placement
            if not output.kind.is_gradient or asks in sent:
                waited_for.add(output.value.key)
    found: set[str] = set()
    for key in reversed(document.order):
        node = document.nodes[key]
        if node.role is not None:
            continue
        if key in waited_for:
            waited_for.update([ref.key for ref in node.operands])
            continue
        found.add(key)
        if key in are_sent_to:
            wanted = zip(node.operands, node.signature.operands, strict=True)
            waited_for |= {r.key for r, how in wanted if (key, r, how) in sent}
    return found


def _held(document: Document, boxing: Boxing) -> int:
    """Return what a boxing adds to a buffer, in bytes."""
    return max(sent.buffer_bytes for sent in bucket_sent(document, [boxing]))


def _keys(
    ways: Iterable[Iterable[Sequence[Packed]]],
    is_wanted: Callable[[Sequence[Packed]], bool] = bool,
) -> Buckets:
    """Return the wanted buckets of each way, as keys of boxings."""
    return tuple(
        tuple(one.boxing.key for one in members)
        for way in ways
        for members in way
        if len(members) > 1 and is_wanted(members)
    )


def _filled(way: Iterable[Packed], most_bytes: int) -> list[list[Packed]]:
    """Return the boxings by buckets, each closed once it holds so many bytes."""
    found: list[list[Packed]] = [[]]
    held = 0
    for one in way:
        if one.held_bytes >= most_bytes:
            continue
        if held >= most_bytes:
            found.append([])
            held = 0
        found[-1].append(one)
        held += one.held_bytes
    return found


def _evened(way: Iterable[Packed], most_bytes: int) -> list[list[Packed]]:
    """Return as few buckets as so many bytes ask for, the largest as small as can be.

    It may hold more where what goes into it is large.
    """
    small = [one for one in way if one.held_bytes < most_bytes]
    if not small:
        return []
    whole = sum(one.held_bytes for one in small)
    number = ceil(whole / most_bytes)
    room = range(max(one.held_bytes for one in small), whole)
    fits = bisect_left(room, True, key=lambda most: len(_within(small, most)) <= number)
    return _within(small, room.start + fits)


def _within(way: Iterable[Packed], most_bytes: int) -> list[list[Packed]]:
    """Return the boxings by buckets, none of which holds more than so many bytes."""
    found: list[list[Packed]] = [[]]
    held = 0
    for one in way:
        held += one.held_bytes
        if held > most_bytes and found[-1]:
            found.append([])
            held = one.held_bytes
        found[-1].append(one)
    return found


def _pays(members: Sequence[Packed]) -> bool:
    """Return whether a bucket takes less than what is in it does one by one."""
    return sum(one.saved_s for one in members) > max(one.shared_s for one in members)


class _Kinds:
    """The kinds of a plan's boxings, each looked at once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.hardware: Hardware = load_hardware(document.hardware)
        self._known: dict[object, _Kind | None] = {}
        # A plan's boxings that are lowered alike most often share what says so.
        self._shared: dict[tuple[TensorType, Placement, int], _Kind | None] = {}

    def __call__(self, boxing: Boxing) -> _Kind | None:
        """Return the kind of a boxing; ``None`` if it can be in no bucket."""
        type_ = type_of(self.document, boxing.ref)
        shared = type_, boxing.source, id(boxing.lowering)
        if shared not in self._shared:
            alike = type_, boxing.source, boxing.lowering
            if alike not in self._known:
                self._known[alike] = self._kind(boxing)
            self._shared[shared] = self._known[alike]
        return self._shared[shared]

    def _kind(self, boxing: Boxing) -> _Kind | None:
        way = way_of(self.document, boxing)
        if way is None:
            return None
        two_s = self._seconds([boxing] * 2)
        added_s = self._seconds([boxing] * 3) - two_s
        alone_s = sum(s.seconds for s in boxing.lowering if is_shared(s))
        figures = alone_s - added_s, two_s - 2 * added_s
        return _Kind(way, (_held(self.document, boxing), *figures))

    def _seconds(self, boxings: Sequence[Boxing]) -> float:
        sent = bucket_sent(self.document, boxings)
        return sum(one.seconds(self.hardware) for one in sent)
