"""Which calls can be of one kernel: elementwise ops, views between them, softmaxes.

A kernel of elementwise ops reads what enters and writes what leaves, element by
element. A softmax, or its backward, reads a row before it writes it, which lies in the
cache by then: such a kernel can do it too, as long as all of them are of the same rows.
And it can write a value into a constant, at one place of each row, as the backward of a
loss by class numbers does: every element's place is compared with that.
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
    """

    free: frozenset[str]
    working: frozenset[str]
    rows: Mapping[str, str]

    @classmethod
    def of(cls, program: Program, rules: RuleSet) -> Fusible:
        """Return those of a program, its ops taken apart as a plan says."""
        free: set[str] = set()
        working: set[str] = set()
        rows: dict[str, str] = {}
        for node in program.calls():
            key, call = info(node).key, call_of(node)
            rule, _ = rule_and_factors(rules, call)
            if rule.free:
                free.add(key)
            elif is_elementwise(rule, call) or _is_one_place(node):
                working.add(key)
            elif rule.by_row:
                working.add(key)
                rows[key] = rule.dims_of(call).partition("->")[2].strip()
        return cls(frozenset(free), frozenset(working), rows)

    def __contains__(self, key: str) -> bool:
        """Whether a call can be of a kernel at all."""
        return key in self.free or key in self.working

    def are_of_the_same_rows(self, keys: Collection[str]) -> bool:
        """Whether calls that can be of a kernel can be of the same one."""
        return len({self.rows[key] for key in keys if key in self.rows}) <= 1

    def without_rows(self, keys: Collection[str]) -> Fusible:
        """Return the same without those of some calls that read rows."""
        left = {key: dims for key, dims in self.rows.items() if key not in keys}
        return Fusible(self.free, self.working - (self.rows.keys() - left.keys()), left)


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


def _is_one_place(node: fx.Node) -> bool:
    """Whether a value is written into a constant, at one place of each row."""
    args: Any = node.args
    if node.target is not aten.scatter.value or args[0].target is not aten.full.default:
        return False
    places = type_of(value_of(args[2])).shape
    whole = type_of(value_of(args[0])).shape
    dim = int(args[1]) % len(whole) if whole else 0
    return places == (*whole[:dim], 1, *whole[dim + 1 :])
