"""One row of the rule table, and the call of an op that it is read for.

A row says which dims of which tensors are the same *factor*, in the notation of
einsum, nnScaler and Shardy. Every legal signature follows from that (signatures.py):

==============  ==========================================================
``m k, k n -> m n``   same name, same factor; one on the left alone is reduced
``*``           all dims that are not named, aligned at the right (broadcasting)
``n^``          a factor nobody may split
``n!``          a factor that may be split if the op is taken apart (``expand``)
``n!~``         the same, where the parts go by how many ways it is split
``(r~:4 m)``    a dim in 4 chunks of at most ``m``, as ``torch.chunk`` cuts it; it is
                split into just these, or not at all
``r~:4{1|4}``   the same where the chunks are elements of pieces
``r~&:4``       of a result: what is used in another placement is moved there
``(b s)``       a dim that is a product of factors, outermost first
``n{4|4|2}``    a dim that is a concatenation: the factor in pieces of these sizes
``b:8``         the size, where the shapes alone do not tell it
``1``           a dim of size one that belongs to no factor
``?``           a dim that nobody may split; alone, a tensor like that
``c =b``        a result that is the same on each part of ``b``, not a sum over it
==============  ==========================================================

A named factor that meets a dim of size one in one operand (a mask that broadcasts)
leaves that dim whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from partita.compiler.ir.sbp import Reduction
from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op: its arguments with every tensor replaced by its type.

    ``operands`` are those tensors in order; ``results`` what it returns, ``None``
    where it returns no tensor. ``chunks`` says, for an op that is taken apart, how many
    ways each factor marked ``!~`` is split.
    """

    op: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    operands: tuple[TensorType, ...]
    results: tuple[TensorType | None, ...]
    chunks: tuple[tuple[str, int], ...] = ()

    def arg(self, position: int, default: object = None) -> object:
        """Return a positional argument, or ``default`` where it was left out."""
        return self.args[position] if position < len(self.args) else default


Text = str | Callable[[Call], str]
"""A column of a row: text, or the function of a call that returns it."""

Expand = Callable[..., tuple[Any, ...] | None]
"""A function of a call and its operands that computes the results by other ops.

It returns ``None`` where the chunks that the call asks for do not do.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one op may be partitioned.

    Attributes:
        op: the overload, as torch prints it.
        dims: factors per tensor.
        linear: the result as a sum of products of operands, by number: ``0*1``,
            ``0+1``, ``0+1*2``; ``+`` adds all operands; "" where it is not linear.
            ``P(sum)`` passes through one operand of each product, if it and the
            results are floating.
        reduce: how the ranks' results join when a reduced factor is split; ``None``
            where they do not, so that reduced factors stay whole.
        flops: multiply-adds counted as two, a product like ``2 m k n`` of numbers and
            factor names, or the function of a call that returns it; "" for one per
            element of the largest tensor.
        localize: which argument states sizes that shrink with the shards:
            ``shape@1`` (the shape of the result), ``pieces@1`` (the sizes of a
            split), ``cut@1`` and ``padded@1`` (the dim that a slice is cut along, or
            the shape that it is put into, with bounds behind), ``groups@8`` (a
            convolution's groups), ``chunks@8`` (how many chunks there are of each dim
            of the result, whose shape comes next).
        pieces: the factors in place of ``dims`` where each part is to have its share of
            every piece that the op cuts, as microbatches do of halves of a batch; ""
            where those are no others.
        part: the op that does a part as ``pieces`` has it, and checks that it may; ""
            for the op itself.
        free: only metadata changes; no memory is read or written.
        by_row: each row of the result follows from that row of the operands, all of
            the same shape, by a few passes over it: softmaxes. A kernel of elementwise
            ops may do it, too.
        expand: computes the same by ops that have rows of their own, called with the
            call and its operands; what the factors marked ``!`` are split by.
    """

    op: str
    dims: Text
    linear: Text = ""
    reduce: Reduction | None = Reduction.SUM
    flops: Text = ""
    localize: str = ""
    pieces: Text = ""
    part: str = ""
    free: bool = False
    by_row: bool = False
    expand: Expand | None = None

    def dims_of(self, call: Call) -> str:
        """Return the factors of one call, as text."""
        return self.dims if isinstance(self.dims, str) else self.dims(call)

    def flops_of(self, call: Call) -> str:
        """Return the product that one call's flops are, as text."""
        return self.flops if isinstance(self.flops, str) else self.flops(call)

    def linear_of(self, call: Call) -> str:
        """Return how one call's results depend on its operands, as text."""
        return self.linear if isinstance(self.linear, str) else self.linear(call)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A table of rules, one per op. A value: ``with_`` returns another one.

    >>> rules = RuleSet.of((Rule("aten.relu.default", "* -> *"),))
    >>> rules.get("aten.relu.default").dims, rules.get("aten.magic.default")
    ('* -> *', None)
    """

    rows: tuple[Rule, ...]
    _by_op: dict[str, Rule]
    _of_calls: dict[Call, Rule] = field(default_factory=dict[Call, Rule])

    @classmethod
    def of(cls, rows: tuple[Rule, ...]) -> RuleSet:
        """Return the set that holds ``rows``; a later row replaces an earlier one."""
        by_op = {rule.op: rule for rule in rows}
        return cls(tuple(by_op[op] for op in sorted(by_op)), by_op)

    def get(self, op: str) -> Rule | None:
        """Return the rule of ``op``, or ``None`` where the table has none."""
        return self._by_op.get(op)

    def of_call(self, call: Call) -> Rule | None:
        """Return the rule of a call: its op's, else one that was derived for it."""
        return self.get(call.op) or self._of_calls.get(call)

    def with_(self, *rows: Rule) -> RuleSet:
        """Return this set with rows added, or replaced where the op has one."""
        return RuleSet.of((*self.rows, *rows))

    def in_pieces(self) -> RuleSet:
        """Return the set with ``pieces`` for ``dims``, where a row has them."""
        rows = (
            replace(row, dims=row.pieces, expand=None) if row.pieces else row
            for row in self.rows
        )
        return RuleSet.of(tuple(rows))

    def with_derived(self, rows: Mapping[Call, Rule]) -> RuleSet:
        """Return this set with rows that hold for single calls of ops without one."""
        return replace(self, _of_calls=dict(rows))
