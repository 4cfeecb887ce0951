"""Rows put in the order of their groups, worked on, and put back: left as they lie.

A mixture of experts sorts its tokens by expert so that each expert's lie together.
Where a row comes to lie then depends on all of the others, so that neither a rank nor a
microbatch could know it of its own rows. The products of groups (grouped.py) need no
order: the same is computed of the rows as they are.

Before   values, order = sort(keys);  y = f(x[order]);  out = y[inverse of order]
After    out = f(x)

It holds for any ``f`` that works on each row by itself, or adds rows up, which is what
the rule table says of its ops: what may be split anywhere between two rows cannot tell
their order. It is done where no use of the order is left, the backward's included.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx

from partita.compiler.capture.excerpt import Excerpt
from partita.compiler.errors import BadRule
from partita.compiler.ir.program import (
    Program,
    info,
    operand_nodes,
    operands,
    set_info,
    type_of,
    value_of,
)
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.factors import Factors, Part
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.table import default_rules

aten = torch.ops.aten

_SORTS = {aten.sort.default, aten.sort.stable}
_BLANK = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}


def unsort(program: Program) -> None:
    """Take every sort of rows whose order matters to nobody out of it, in place."""
    shown: dict[object, bool] = {}
    for node in list(program.graph.nodes):
        if node.target in _SORTS and type_of(operands(node)[0]).ndim == 1:
            _Order(program, node, shown).undo()
    program.graph.eliminate_dead_code()


@dataclass(frozen=True, slots=True)
class _Form:
    """What stands for a value where nothing was sorted.

    Attributes:
        own: the value with its rows as they lie.
        dim: which dim the sorted value has in the order; ``None`` if the two are equal.
    """

    own: fx.Node
    dim: int | None = None


class _Matters(Exception):
    """The order of the rows matters to a node."""


@dataclass
class _Order:
    """The order that one sort of keys puts rows in.

    ``shown`` is what was found by trying, by what the nodes compute.
    """

    program: Program
    sort: fx.Node
    shown: dict[object, bool]
    forms: dict[fx.Node, _Form] = field(default_factory=dict[fx.Node, _Form])
    inverses: set[fx.Node] = field(default_factory=set[fx.Node])
    members: dict[int, fx.Node] = field(default_factory=dict[int, fx.Node])
    count: int = 0

    def __post_init__(self) -> None:
        (self.keys,) = operand_nodes(self.sort)
        (self.size,) = type_of(value_of(self.keys)).shape

    def undo(self) -> None:
        """Let all that is computed in the order be computed without it, if it can."""
        if type_of(value_of(self.keys)).dtype.is_floating_point:
            return  # keys of groups are whole numbers
        try:
            for node in self._users():
                self._follow(node)
        except _Matters:
            return
        for node, form in self.forms.items():
            if form.dim is None:
                node.replace_all_uses_with(form.own)

    def _users(self) -> list[fx.Node]:
        """Return the nodes after the sort, in order."""
        nodes = list(self.program.graph.nodes)
        return nodes[nodes.index(self.sort) + 1 :]

    def _follow(self, node: fx.Node) -> None:
        """Note the form of a node's values, where it uses any that are sorted."""
        self.at = node
        given = node.all_input_nodes
        if self.sort in given:
            if node.target is not operator.getitem:
                raise _Matters
            self.forms[node] = _Form(self._count() if node.args[1] else self.keys, 0)
        elif any(self._is_sorted(n) or n in self.inverses for n in given):
            if node.op != "call_function":
                raise _Matters
            special = _SPECIAL.get(node.target)
            if special is None or not special(self, node):
                self._work(node)

    def _is_sorted(self, node: fx.Node) -> bool:
        return node in self.forms and self.forms[node].dim is not None

    # --- ops that move rows

    def index(self, node: fx.Node) -> bool:
        """``x[order]`` is sorted ``x``; sorted ``x`` by the inverse is ``x``."""
        rows = _one_index(node)
        x, form = operand_nodes(node)[0], self.forms.get(operand_nodes(node)[0])
        if rows in self.inverses:
            if form is None or form.dim != 0:
                raise _Matters
            self.forms[node] = _Form(form.own)
            return True
        which = self.forms.get(rows) if rows else None
        if which is None or which.dim is None:
            return False
        if form is not None and form.dim is not None:
            raise _Matters
        own = form.own if form else x
        times = self._repeats(which.own)
        (type_,) = info(node).types
        assert type_ is not None
        if times and times * type_of(value_of(own)).shape[0] == self.size:
            self.forms[node] = _Form(self._repeated(own, times, type_), 0)
            return True
        new = self._write(aten.index.Tensor, (own, [which.own]), type_)
        self.forms[node] = _Form(new, 0)
        return True

    def index_put(self, node: fx.Node) -> bool:
        """Put sorted rows back, or what belongs to rows as they lie in the order."""
        rows = _one_index(node)
        base, values = operand_nodes(node)[0], operand_nodes(node)[-1]
        adds = bool(node.args[3]) if len(node.args) > 3 else False
        form, which = self.forms.get(values), self.forms.get(rows) if rows else None
        is_blank = base.target in _BLANK or _is_zeros(base)
        if rows in self.inverses:
            is_whole = type_of(value_of(base)).shape[0] == self.size
            if (form and form.dim is not None) or not is_blank or not is_whole:
                raise _Matters
            self.forms[node] = _Form(form.own if form else values, 0)
            return True
        if which is None or which.dim is None or not is_blank:
            return False
        times = self._repeats(which.own)
        if form is None and times == 1 and self._is_counted(values):
            self.inverses.add(node)
            return True
        if form is None or form.dim != 0 or not (adds or times == 1):
            raise _Matters
        (type_,) = info(node).types
        assert type_ is not None
        if times and type_.shape[0] * times == self.size:
            new = self._added(form.own, times, type_)
        else:
            args = (self._own(base), [which.own], form.own, adds)
            new = self._write(aten.index_put.default, args, type_)
        self.forms[node] = _Form(new)
        return True

    def _repeats(self, rows: fx.Node) -> int:
        """Return how often rows are named one after another; 0 where it is not so."""
        named = self._value(rows)
        if named is None or not named.numel():
            return 0
        times = int((named == named[0]).sum())
        expected = torch.arange(self.size) // times
        return times if torch.equal(named.long(), expected) else 0

    def _is_counted(self, values: fx.Node) -> bool:
        found = self._value(values)
        return found is not None and torch.equal(found.long(), torch.arange(self.size))

    def _repeated(self, x: fx.Node, times: int, type_: TensorType) -> fx.Node:
        if times == 1:
            return x
        num, *rest = type_of(value_of(x)).shape
        one, all_ = [num, 1, *rest], [num, times, *rest]
        dtype = type_.dtype
        x = self._write(aten.reshape.default, (x, one), TensorType(tuple(one), dtype))
        x = self._write(aten.expand.default, (x, all_), TensorType(tuple(all_), dtype))
        return self._write(aten.reshape.default, (x, list(type_.shape)), type_)

    def _added(self, x: fx.Node, times: int, type_: TensorType) -> fx.Node:
        if times == 1:
            return x
        num, *rest = type_.shape
        shape = (num, times, *rest)
        parts = TensorType(shape, type_.dtype)
        x = self._write(aten.reshape.default, (x, list(shape)), parts)
        return self._write(aten.sum.dim_IntList, (x, [1]), type_)

    # --- ops that work on rows

    def _work(self, node: fx.Node) -> None:
        """Note the forms of an op that works on each row by itself, or adds them up."""
        try:
            rule, factors = rule_and_factors(default_rules, call_of(node))
        except BadRule:
            raise _Matters from None
        given = operand_nodes(node)
        factor = self._factor(given, factors)
        own = {old: self._own(old) for old in given}
        if factor is not None:
            for old, parts in zip(given, factors.operands, strict=True):
                is_in_order = any(part.factor == factor for part in parts)
                if is_in_order and not self._is_sorted(old):
                    own[old] = self._members(old)
        new = self._copied(node, own)
        results = [node]
        if len(info(node).types) > 1:
            results = [user for user in node.users if user.target is operator.getitem]
        for result in results:
            index = value_of(result).index
            dim = _dim_of(rule, factors, index, factor)
            made = new if result is node else self._item(new, result, index)
            self.forms[result] = _Form(made, dim)

    def _factor(self, given: Sequence[fx.Node], factors: Factors) -> str | None:
        """Return the factor that is in the order: of whole dims, split anywhere."""
        found: set[str] = set()
        for node, parts in zip(given, factors.operands, strict=True):
            if node in self.inverses:
                raise _Matters
            form = self.forms.get(node)
            if form is not None and form.dim is not None:
                here = [part for part in parts if part.dim == form.dim]
                if len(here) != 1 or not _is_dim(here[0]):
                    raise _Matters
                found.add(here[0].factor)
        splits = factors.sizes.keys() - factors.expanded - factors.chunked
        if len(found) > 1 or not found <= splits:
            raise _Matters
        return found.pop() if found else None

    def _members(self, node: fx.Node) -> fx.Node:
        """Return, for rows as they lie, what tells the group of each sorted row.

        Groups come one after another, each as long as there are keys of it. That this
        is what ``node`` computes is shown by trying keys: empty groups, one group, and
        keys of none among them.
        """
        (type_,) = info(node).types
        if type_ is None or type_.ndim != 2 or type_.dtype is not torch.bool:
            raise _Matters
        num_groups = type_.shape[1]
        if not self._tell_groups(node, num_groups):
            raise _Matters
        if num_groups not in self.members:
            dtype = type_of(value_of(self.keys)).dtype
            column = TensorType((self.size, 1), dtype)
            args = self.keys, [self.size, 1]
            keys = self._write(aten.reshape.default, args, column)
            counted = self._count(num_groups, dtype)
            told = self._write(aten.eq.Tensor, (keys, counted), type_)
            self.members[num_groups] = told
        return self.members[num_groups]

    def _tell_groups(self, node: fx.Node, num_groups: int) -> bool:
        """Whether ``node`` tells the group of each sorted row, for any keys tried."""
        part = Excerpt.of(self.program, node, (self.keys,))
        if part is None:
            return False
        kind = part.key, self.size
        if kind not in self.shown:
            groups = torch.arange(num_groups)
            self.shown[kind] = all(
                torch.equal(part(keys), keys.sort().values.unsqueeze(1) == groups)
                for keys in self._tried(num_groups)
            )
        return self.shown[kind]

    def _tried(self, num_groups: int) -> Iterator[Tensor]:
        """Yield keys: all groups and none, the first alone, the last alone, a few."""
        shape, generator = (self.size,), torch.Generator().manual_seed(0)
        dtype = type_of(value_of(self.keys)).dtype
        bounds = [(0, num_groups + 1), (0, 1), (num_groups - 1, num_groups)]
        bounds += [(num_groups // 2, num_groups), (0, num_groups // 2 + 1)]
        for low, high in bounds:
            yield torch.randint(low, high, shape, generator=generator).to(dtype)

    def _value(self, node: fx.Node) -> Tensor | None:
        """Return a value that depends on nothing that enters, else ``None``."""
        part = Excerpt.of(self.program, node)
        return part() if part else None

    # --- writing

    def _own(self, node: fx.Node) -> fx.Node:
        return self.forms[node].own if node in self.forms else node

    def _count(self, size: int = 0, dtype: torch.dtype = torch.int64) -> fx.Node:
        """Add a count of rows, or of ``size``."""
        type_ = TensorType((size or self.size,), dtype)
        kwargs = {"dtype": dtype, "device": torch.device("cpu")}
        return self._write(aten.arange.default, type_.shape, type_, **kwargs)

    def _write(
        self,
        op: Callable[..., object],
        args: tuple[object, ...],
        type_: TensorType,
        **kwargs: object,
    ) -> fx.Node:
        """Add a call ahead of the node that is looked at."""
        with self.at.graph.inserting_before(self.at):
            new = self.at.graph.call_function(op, args, kwargs)  # type: ignore[arg-type]
        fact = info(value_of(self.at).node)
        set_info(new, replace(fact, key=f"{fact.key}/own{self.count}", types=(type_,)))
        self.count += 1
        return new

    def _copied(self, node: fx.Node, own: dict[fx.Node, fx.Node]) -> fx.Node:
        with node.graph.inserting_before(node):
            new = node.graph.node_copy(node, lambda n: own.get(n, n))
        new.meta = dict(node.meta)
        return new

    def _item(self, new: fx.Node, old: fx.Node, index: int) -> fx.Node:
        with old.graph.inserting_before(old):
            item = old.graph.call_function(operator.getitem, (new, index))
        item.meta = dict(old.meta)
        return item


_SPECIAL: dict[object, Callable[[_Order, fx.Node], bool]] = {
    aten.index.Tensor: _Order.index,
    aten.index_put.default: _Order.index_put,
}


def _one_index(node: fx.Node) -> fx.Node | None:
    """Return the one vector that the rows are named by, if it is so."""
    indices = node.args[1]
    if isinstance(indices, list | tuple) and len(indices) == 1:
        (rows,) = indices
        if isinstance(rows, fx.Node) and type_of(value_of(rows)).ndim == 1:
            return rows
    return None


def _is_zeros(node: fx.Node) -> bool:
    return node.target is aten.full.default and node.args[1] in (0, 0.0, False)


def _is_dim(part: Part) -> bool:
    """Whether a factor is all of its dim."""
    return part.outer == part.inner == 1 and not part.pieces and not part.chunks


def _dim_of(rule: Rule, factors: Factors, index: int, factor: str | None) -> int | None:
    """Return the dim of a result that is in the order, if one is."""
    parts = factors.results[index]
    if factor is None:
        return None
    found = [part for part in parts or () if part.factor == factor]
    if not found and rule.reduce is not None:
        return None
    if len(found) != 1 or not _is_dim(found[0]):
        raise _Matters
    return found[0].dim
