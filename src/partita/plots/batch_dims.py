"""Which dims of a plan's tensors grow with the batch.

Dim 0 of the inputs does. From there the rows of the table tell: a factor that such a
dim is made of is the same in every operand and result of the call that has it. Where a
dim is a product of several, as ``batch * sequence`` is, the run of elements is followed
that the batch counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from partita.compiler.errors import BadOptions, BadRule
from partita.compiler.ir.program import InputKind
from partita.compiler.plan.document import Document, Node, Ref
from partita.compiler.plan.explain_formula import printed_call
from partita.compiler.rules.calls import rule_and_factors
from partita.compiler.rules.factors import Part
from partita.compiler.rules.table import default_rules


@dataclass(frozen=True, slots=True)
class Run:
    """Of a dim, the loop of ``size`` whose steps are ``inner`` elements apart."""

    inner: int
    size: int

    def within(self, part: Part) -> Run | None:
        """Return what of it a factor counts, in that factor's own steps."""
        low = max(self.inner, part.inner)
        high = min(self.inner * self.size, part.inner * part.size)
        if part.pieces or part.chunks or high <= low:
            return None
        inner, inner_rest = divmod(low, part.inner)
        size, size_rest = divmod(high, low)
        return None if inner_rest or size_rest else Run(inner, size)


@dataclass
class BatchDims:
    """What grows with the batch.

    Attributes:
        size: of the batch, or of one microbatch where there are several.
        dims: by tensor and dim, the run that the batch is.
        factors: by call, the factors of its row, and how large they are.
    """

    size: int
    dims: dict[tuple[Ref, int], Run] = field(default_factory=dict[tuple[Ref, int], Run])
    factors: dict[str, dict[str, int]] = field(
        default_factory=dict[str, dict[str, int]]
    )


def find_batch(document: Document) -> BatchDims:
    """Return what of a plan grows with its batch.

    Raises:
        BadOptions: for a plan whose inputs have no dim.
    """
    inputs = [
        (Ref(key), type_)
        for key, node in document.nodes.items()
        if node.role is not None and node.role.kind is InputKind.INPUT
        for type_ in node.types
        if type_ is not None and type_.ndim
    ]
    if not inputs:
        raise BadOptions("the plan has no inputs with a batch; want along=AXIS")
    found = BatchDims(inputs[0][1].shape[0])
    for ref, type_ in inputs:
        if type_.shape[0] == found.size:
            found.dims[ref, 0] = Run(1, found.size)
    _follow(document, found)
    return found


def _follow(document: Document, found: BatchDims) -> None:
    """Carry the batch through the calls, to and fro, until nothing is added."""
    calls = list(_calls(document))
    known = -1
    while known != len(found.dims):
        known = len(found.dims)
        for key, tensors, sizes in (*calls, *reversed(calls)):
            runs = _runs(tensors, found)
            found.factors[key] = {f: sizes[f] for f in runs if f in sizes}
            for ref, parts in tensors:
                for part in parts:
                    run = runs.get(part.factor)
                    if run is not None and not (part.pieces or part.chunks):
                        whole = Run(run.inner * part.inner, run.size)
                        found.dims.setdefault((ref, part.dim), whole)


def _runs(
    tensors: Sequence[tuple[Ref, Sequence[Part]]], found: BatchDims
) -> dict[str, Run]:
    """Return the factors of a call that the batch is in, and where in them."""
    runs: dict[str, Run] = {}
    for ref, parts in tensors:
        taken: set[int] = set()
        for part in sorted(parts, key=lambda part: -part.inner):  # the outermost has it
            whole = found.dims.get((ref, part.dim))
            run = None if whole is None else whole.within(part)
            if run is not None and part.dim not in taken:
                taken.add(part.dim)
                runs.setdefault(part.factor, run)
    return runs


_Tensors = list[tuple[Ref, tuple[Part, ...]]]

_Called = tuple[str, _Tensors, dict[str, int]]

_RECEIVED = (InputKind.RECEIVED_FORWARD, InputKind.RECEIVED_BACKWARD)


def _calls(document: Document) -> Iterator[_Called]:
    """Yield what every understood call uses and makes, and the sizes of factors."""
    for key, node in document.nodes.items():
        if node.role is not None and node.role.kind in _RECEIVED:
            yield key, _sent_and_received(key, node), {}
        call = None if node.role is not None else printed_call(document, node)
        if call is None:
            continue
        try:
            _, factors = rule_and_factors(default_rules, call)
        except BadRule:
            continue
        used = zip(node.operands, factors.operands, strict=True)
        made = ((Ref(key, i), parts or ()) for i, parts in enumerate(factors.results))
        yield key, [*used, *made], factors.all_sizes


def _sent_and_received(key: str, node: Node) -> _Tensors:
    """Return a tensor where another stage makes it, and where it enters this one."""
    assert node.role is not None
    (type_,) = node.types
    shape = () if type_ is None else type_.shape
    parts = tuple(Part(f"d{dim}", dim, size) for dim, size in enumerate(shape))
    return [(Ref.parse(node.role.name), parts), (Ref(key), parts)]
