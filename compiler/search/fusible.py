"""Which calls can be of one kernel: elementwise ops, views between them, softmaxes.

A kernel of elementwise ops reads what enters and writes what leaves, element by
element. A softmax, or its backward, reads a row before it writes it, which lies in the
cache by then: such a kernel can do it too, as long as all of them are of the same rows.
And it can write a value into a constant that it makes, at one place of each row, as the
backward of a loss by class numbers does: every element's place is compared with that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from partita.compiler.ir.program import Program, info, type_of, value_of
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.rule import Call, Rule, RuleSet

aten = torch.ops.aten


@dataclass(frozen=True)
class Fusible:
    """The keys of a program's calls that can be of one kernel.

    Attributes:
        free: views.
        working: ops that compute.
        rows: of those that read rows before they write them, which ones.
        into: of those that write into a constant, the key of what makes it.
    """

    free: frozenset[str]
    working: frozenset[str]
    rows: Mapping[str, str]
    into: Mapping[str, str]

    @classmethod
    def of(cls, program: Program, rules: RuleSet) -> Fusible:
        """Return those of a program, its ops taken apart as a plan says."""
        free: set[str] = set()
        working: set[str] = set()
        rows: dict[str, str] = {}
        into: dict[str, str] = {}
        for node in program.calls():
            key, call = info(node).key, call_of(node)
            rule, _ = rule_and_factors(rules, call)
            if rule.free:
                free.add(key)
            elif is_elementwise(rule, call):
                working.add(key)
            elif rule.by_row:
                rows[key] = rule.dims_of(call).partition("->")[2].strip()
            elif (constant := _written_into(node)) is not None:
                into[key] = info(constant).key
        return cls(frozenset(free), frozenset({*working, *rows, *into}), rows, into)

    def __contains__(self, key: str) -> bool:
        """Whether a call can be of a kernel at all."""
        return key in self.free or key in self.working

    def misfits(self, keys: Collection[str]) -> frozenset[str]:
        """Return those of one kernel's calls that cannot be of it.

        These are all that read rows, where the rows are not the same, and what writes
        into a constant that is made elsewhere.
        """
        reading = {key: self.rows[key] for key in keys if key in self.rows}
        found = set(reading) if len({*reading.values()}) > 1 else set[str]()
        found |= {key for key in keys if self.into.get(key, key) not in keys}
        return frozenset(found)

    def without(self, keys: Collection[str]) -> Fusible:
        """Return the same without some calls."""
        rows, into = (
            {key: what for key, what in of.items() if key not in keys}
            for of in (self.rows, self.into)
        )
        return Fusible(self.free - {*keys}, self.working - {*keys}, rows, into)


def is_elementwise(rule: Rule, call: Call) -> bool:
    """Whether each element of the results follows from those that stand beneath it.

    >>> from partita.compiler.rules.rule import Call, Rule
    >>> call = Call("op", (), (), (), ())
    >>> texts = ("*, * -> *", " -> *", "m k, k n -> m n", "* -> ")
    >>> [is_elementwise(Rule("op", text), call) for text in texts]
    [True, True, False, False]
    """
    left, _, right = rule.dims_of(call).partition("->")
    tensors = [*(left.split(",") if left.strip() else []), *right.split(",")]
    return all(dims.strip() == "*" for dims in tensors)


def _written_into(node: fx.Node) -> fx.Node | None:
    """Return the constant that a value is written into at one place of each row.

    ``None`` for any other call. Only of float32: older versions of Inductor write that
    into any constant (``scatter_upon_const_tensor``).
    """
    args: Any = node.args
    if node.target is not aten.scatter.value or args[0].target is not aten.full.default:
        return None
    whole, places = (type_of(value_of(of)) for of in (args[0], args[2]))
    dim = int(args[1]) % max(whole.ndim, 1)
    is_one = places.shape == (*whole.shape[:dim], 1, *whole.shape[dim + 1 :])
    return args[0] if is_one and whole.dtype is torch.float32 else None
