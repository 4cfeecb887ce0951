"""What forward makes and backward needs, made a second time instead of kept.

A node that is made again gets a clone in the backward, under a key of its own, right
before the first node there that it is needed for, directly or to make others again; of
what one node needs, clones stand in the order of the forward. Between its last use in
forward and the clone nothing of it is alive. A clone works on the clones of operands
that are made again too, else on what forward kept. It computes what the original does
to the last bit: a draw of random numbers is an argument of its op, and is copied with
it.

Source: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear Memory
Cost", arXiv:1604.06174, section 3.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import replace

from torch import fx

from partita.compiler.ir.program import (
    OutputKind,
    Phase,
    Program,
    has_info,
    info,
    set_info,
)

_SUFFIX = "~again"


def again_key(key: str) -> str:
    """Return the key of what is made again: of a node's clone, or of a boxing's.

    >>> again_key("h.0.mlp.act/gelu/0")
    'h.0.mlp.act/gelu/0~again'
    """
    return key + _SUFFIX


def is_again(key: str) -> bool:
    """Whether ``key`` is that of something made again.

    >>> is_again(again_key("mm/0")), is_again("mm/0")
    (True, False)
    """
    return key.endswith(_SUFFIX)


def phase_of_output(kind: OutputKind) -> Phase:
    """Return when an output leaves: a gradient in the backward, the rest before it."""
    if kind is OutputKind.SENT_BACKWARD:
        return Phase.BACKWARD_INPUT
    return Phase.BACKWARD_WEIGHT if kind.is_gradient else Phase.FORWARD


def needed_again(program: Program, keys: Collection[str]) -> tuple[str, ...]:
    """Return those of ``keys`` that backward needs, if all of them are made again.

    They are those of forward calls that a node of the backward uses, or one that is
    made again for it; in the order of the program.
    """
    found: set[fx.Node] = set()
    order: list[str] = []
    for node in reversed(list(program.calls()) if keys else []):
        fact = info(node)
        if fact.key in keys and fact.phase is Phase.FORWARD:
            used_by = {user for leaf in _leaves(node) for user in leaf.users}
            if used_by & found or any(_is_backward(user) for user in used_by):
                found.add(node)
                order.append(fact.key)
    return tuple(reversed(order))


def make_again(program: Program, keys: Collection[str]) -> Program:
    """Return a copy of ``program`` in which the nodes ``keys`` are made again.

    Every key must be one of ``needed_again``.
    """
    program = program.copy()
    cloning = _Cloning()
    for node in reversed(list(program.calls())):
        if info(node).key in keys:
            cloning.clone(node)
    program.graph.lint()
    program.graph_module.recompile()
    return program


class _Cloning:
    """Clones nodes, the last first, and knows what each clone is needed for."""

    def __init__(self) -> None:
        self._needed_for: dict[fx.Node, fx.Node] = {}
        self._first: dict[fx.Node, fx.Node] = {}  # clone for a node

    def clone(self, node: fx.Node) -> None:
        """Give the users of ``node`` in the backward a clone.

        Clones of its users stand already, and are users of it until they get its clone.
        """
        fact = info(node)
        used = {
            leaf: [user for user in leaf.users if _is_backward(user)]
            for leaf in _leaves(node)
        }
        needed_for = min(
            self._needed_for.get(user, user)
            for users in used.values()
            for user in users
        )
        values: dict[fx.Node, fx.Node] = {}
        with node.graph.inserting_before(self._first.get(needed_for, needed_for)):
            for leaf, users in used.items():
                if leaf is not node and not users:
                    continue
                copy = node.graph.node_copy(leaf, lambda old: values.get(old, old))
                copy.meta = {}
                values[leaf] = copy
                for user in users:
                    user.replace_input_with(leaf, copy)
        again = replace(fact, key=again_key(fact.key), phase=Phase.BACKWARD_INPUT)
        set_info(values[node], again)
        self._needed_for[values[node]] = needed_for
        self._first[needed_for] = values[node]


def _leaves(node: fx.Node) -> Iterator[fx.Node]:
    """Yield a node and the choices among its results, which others use."""
    yield node
    for user in node.users:
        if user.target is operator.getitem:
            yield user


def _is_backward(node: fx.Node) -> bool:
    return has_info(node) and info(node).phase is not Phase.FORWARD
