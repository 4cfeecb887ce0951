"""Read a row's text for one call: which part of which dim belongs to which factor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch

from partita.compiler.errors import BadRule
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call, Rule


@dataclass(frozen=True, slots=True)
class Part:
    """Where a factor occurs in a tensor.

    Of dim ``dim``, whose size is ``outer * size * inner``, it is the middle one of
    three nested loops. ``pieces`` are the sizes of the runs it is a concatenation of.
    With ``chunks`` the factor is that many chunks of the dim, of which ``size`` is all.
    """

    factor: str
    dim: int
    size: int
    outer: int = 1
    inner: int = 1
    pieces: tuple[int, ...] = ()
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of one call: the parts of each operand and result.

    Attributes:
        operands: the parts of each operand.
        results: the parts of each result, ``None`` where it is no tensor.
        sizes: of each factor that may be split; whole ones are left out.
        all_sizes: of each factor.
        linear: how the results depend on the operands, as ``Rule.linear``.
        flops: the product that the flops are, as ``Rule.flops``.
        partial: the operands that may be ``P(sum)``: floating ones, if results are.
        same: per result, the factors whose every part gives this same result.
        expanded: the factors that can be split only where the op is taken apart.
        chunked: those of them whose parts go by how many ways they are split.
        moved: per result, whether users may have it moved to where they want it.
        joinable: whether results can be partial; truth values cannot.
    """

    operands: tuple[tuple[Part, ...], ...]
    results: tuple[tuple[Part, ...] | None, ...]
    sizes: dict[str, int]
    all_sizes: dict[str, int]
    linear: str = ""
    flops: str = ""
    partial: frozenset[int] = frozenset()
    same: tuple[frozenset[str], ...] = ()
    expanded: frozenset[str] = frozenset()
    chunked: frozenset[str] = frozenset()
    moved: tuple[bool, ...] = ()
    joinable: bool = True


_TERM = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z_0-9]*|\*\d+)(?P<marks>[\^!~&]*)(?::(?P<size>\d+))?"
    r"(?:\{(?P<pieces>[\d|]+)\})?"
)
_DIM = re.compile(r"\(([^()]*)\)|(\S+)")
_SAME = re.compile(r"=(\w+)")


@lru_cache(maxsize=4096)
def _tensors(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    left, arrow, right = text.partition("->")
    if not arrow:
        raise BadRule(f"rule {text!r} has no '->'")
    operands = [part.strip() for part in left.split(",")]
    results = [part.strip() for part in right.split(",")]
    return tuple(operands if left.strip() else ()), tuple(results)


def _dims(text: str, ndim: int, rule: str) -> list[str]:
    """Return one piece of text per dim; ``*`` becomes ``*2 *1 *0`` from the right."""
    text = _SAME.sub("", text).strip()
    if text == "?":
        return ["?"] * ndim
    dims = [match[1] or match[2] for match in _DIM.finditer(text)]
    if "*" in dims:
        at = dims.index("*")
        count = ndim - len(dims) + 1
        dims[at : at + 1] = [f"*{i}" for i in reversed(range(max(count, 0)))]
    if len(dims) != ndim:
        raise BadRule(f"{rule}: {text!r} has {len(dims)} dims, the tensor {ndim}")
    return dims


@dataclass(frozen=True, slots=True)
class _Term:
    name: str
    marks: str
    size: int | None
    pieces: tuple[int, ...]


def _terms(dim: str, rule: str) -> list[_Term]:
    terms: list[_Term] = []
    for word in dim.split():
        match = _TERM.fullmatch(word)
        if match is None and word not in ("1", "?"):
            raise BadRule(f"{rule}: {word!r} is no factor")
        if match is not None:
            pieces = tuple(int(p) for p in (match["pieces"] or "").split("|") if p)
            size = int(match["size"]) if match["size"] else None
            terms.append(_Term(match["name"], match["marks"], size, pieces))
    return terms


def _is_in_chunks(term: _Term) -> bool:
    return "~" in term.marks and term.size is not None


class _Sizes:
    """Collects the factors' sizes while a call is read."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.known: dict[str, int] = {}
        self.whole: set[str] = set()
        self.expanded: set[str] = set()
        self.chunked: set[str] = set()

    def learn(self, terms: list[_Term], size: int) -> None:
        for term in terms:
            if term.size is not None:
                self.known[term.name] = term.size
            if "^" in term.marks:
                self.whole.add(term.name)
            if "!" in term.marks:
                self.expanded.add(term.name)
            if "!~" in term.marks:
                self.chunked.add(term.name)
        if len(terms) == 1 and not terms[0].pieces and not _is_in_chunks(terms[0]):
            name = terms[0].name
            if self.known.setdefault(name, size) == 1:
                self.known[name] = size
            elif size not in (1, self.known[name]) and not name.startswith("*"):
                raise BadRule(
                    f"{self.rule}: factor {name} is {self.known[name]} and {size}"
                )


def read(rule: Rule, call: Call) -> Factors:
    """Return the factors of ``call`` under ``rule``.

    Raises:
        BadRule: when the row's text does not parse or does not fit the shapes.
    """
    text = rule.dims_of(call)
    where = f"rule {rule.op} {text!r}"
    left, right = _tensors(text)
    if len(left) != len(call.operands) or len(right) != len(call.results):
        raise BadRule(
            f"{where} is for {len(left)} operands and {len(right)} results; the call "
            f"has {len(call.operands)} and {len(call.results)}"
        )
    tensors: list[tuple[TensorType | None, str]] = [
        *zip(call.operands, left, strict=True),
        *zip(call.results, right, strict=True),
    ]
    sizes = _Sizes(where)
    dims: list[list[list[_Term]] | None] = []
    for tensor, words in tensors:
        if tensor is None:
            dims.append(None)
            continue
        terms = [_terms(dim, where) for dim in _dims(words, tensor.ndim, where)]
        dims.append(terms)
        for dim_terms, size in zip(terms, tensor.shape, strict=True):
            sizes.learn(dim_terms, size)
    split = len(call.operands)
    parts = [
        None if tensor is None or terms is None else _parts(tensor, terms, sizes)
        for (tensor, _), terms in zip(tensors, dims, strict=True)
    ]
    return Factors(
        operands=tuple(part or () for part in parts[:split]),
        results=tuple(parts[split:]),
        sizes={
            name: size for name, size in sizes.known.items() if name not in sizes.whole
        },
        all_sizes=sizes.known,
        linear=rule.linear_of(call),
        flops=rule.flops_of(call),
        partial=_may_be_partial(call),
        same=tuple(frozenset(_SAME.findall(words)) for words in right),
        expanded=frozenset(sizes.expanded - sizes.whole),
        chunked=frozenset(sizes.chunked - sizes.whole),
        moved=tuple("&" in words for words in right),
        joinable=all(r is None or r.dtype != torch.bool for r in call.results),
    )


def _may_be_partial(call: Call) -> frozenset[int]:
    if not all(r is None or _is_inexact(r) for r in call.results):
        return frozenset()
    return frozenset(i for i, x in enumerate(call.operands) if _is_inexact(x))


def _is_inexact(tensor: TensorType) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _parts(
    tensor: TensorType, dims: list[list[_Term]], sizes: _Sizes
) -> tuple[Part, ...]:
    found: list[Part] = []
    for dim, (terms, dim_size) in enumerate(zip(dims, tensor.shape, strict=True)):
        if terms and _is_in_chunks(terms[0]):
            term = terms[0]
            chunks = sizes.known[term.name]
            part = Part(term.name, dim, dim_size, pieces=term.pieces, chunks=chunks)
            found.append(part)
            continue
        if len(terms) == 1:
            term = terms[0]
            if term.pieces:
                sizes.known[term.name] = max(
                    sizes.known.get(term.name, 0), sum(term.pieces)
                )
            if dim_size == 1 and sizes.known[term.name] != 1:
                continue  # this operand broadcasts along the factor
            found.append(Part(term.name, dim, dim_size, pieces=term.pieces))
            continue
        if not terms:
            continue
        outer = 1
        for term in terms:
            size = sizes.known.get(term.name)
            if size is None:
                known = [sizes.known[t.name] for t in terms if t.name in sizes.known]
                if len(known) != len(terms) - 1:
                    raise BadRule(f"{sizes.rule}: the size of {term.name} is unknown")
                size = sizes.known[term.name] = dim_size // max(prod(known), 1)
            found.append(
                Part(term.name, dim, size, outer, dim_size // max(outer * size, 1))
            )
            outer *= size
        if outer != dim_size:
            raise BadRule(f"{sizes.rule}: {dim_size} is not the product of its factors")
    return tuple(found)
