"""What is asked to be made again for the backward: patterns over the names of things.

``*``, ``?`` and ``[...]`` stand for parts of a name, as in a shell; ``*`` for dots and
slashes too. A pattern is read by its form:

* ``transformer.h.*``: modules. What the outermost that match make inside is made
  again, boxings of activations for it as well; what leaves them is kept, as an
  activation checkpoint of each would
* ``*.mlp.act/*``, with a slash: nodes, by their keys
* ``parameter:transformer.h.*``, with a colon: what enters. Where a parameter is
  gathered for its use, it is gathered again, and its views and its copies in fewer
  bits are made again
* ``parameter:* -> (B,)``, with an arrow: boxings, by their keys
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property

from torch import fx

from partita.compiler.errors import BadOptions
from partita.compiler.ir.program import (
    Phase,
    Program,
    Value,
    info,
    is_short_copy,
    operands,
    value_of,
)
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.rule import RuleSet


class Again:
    """What ``patterns`` ask to be made again of a program.

    Raises:
        BadOptions: for a pattern that matches nothing of its kind.
    """

    def __init__(
        self, program: Program, rules: RuleSet, patterns: Sequence[str]
    ) -> None:
        self._program = program
        self._rules = rules
        self._boxings = [p for p in patterns if " -> " in p]
        rest = [p for p in patterns if " -> " not in p]
        self._nodes = [p for p in rest if "/" in p]
        self._entering = [p for p in rest if "/" not in p and ":" in p]
        self._modules = [p for p in rest if "/" not in p and ":" not in p]
        if patterns:
            self._check()

    def nodes(self) -> set[str]:
        """Return the keys of the calls of the forward that are asked for."""
        if not (self._nodes or self._entering or self._modules):
            return set()
        calls = [n for n in self._program.calls() if info(n).phase is Phase.FORWARD]
        found = {
            info(node).key for node in calls if _matches(self._nodes, info(node).key)
        }
        if self._entering:
            found |= {info(n).key for n in calls if self._is_view_of_asked(n)}
        for module in self._outermost:
            found |= self._inside(module, calls)
        return found

    def form(self, nodes: Iterable[fx.Node]) -> Hashable:
        """Return what is asked of each node, but for its name.

        Boxings are asked for by their names, so with such a pattern it is all names.
        """
        asked = self.nodes()
        inside = self._called_inside if self._modules else set[str]()
        return tuple(
            (key in asked, key in inside, _matches(self._entering, key))
            if not self._boxings
            else key
            for key in (info(node).key for node in nodes)
        )

    def has_boxing(self, value: Value, key: str, users: Collection[str]) -> bool:
        """Whether the boxing ``key`` of a tensor, for these users, is asked for."""
        if _matches(self._boxings, key):
            return True
        if not (self._entering or self._modules):
            return False
        source = self._source(value.node)
        if source is not None:
            return _matches(self._entering, info(source).key)
        return any(user in self._called_inside for user in users)

    def _is_view_of_asked(self, node: fx.Node) -> bool:
        source = self._source(node)
        return source is not None and _matches(self._entering, info(source).key)

    def _source(self, node: fx.Node) -> fx.Node | None:
        """Return what enters the program and is, or is seen through, ``node``."""
        while node.op != "placeholder":
            used = operands(node)
            if len(used) != 1 or not (self._is_free(node) or is_short_copy(node)):
                return None
            node = used[0].node
        return node

    def _is_free(self, node: fx.Node) -> bool:
        rule, _ = rule_and_factors(self._rules, call_of(node))
        return rule.free

    @cached_property
    def _called_inside(self) -> set[str]:
        """The keys of all calls in the modules that are asked for."""
        return {
            info(node).key
            for node in self._program.calls()
            if _is_inside(info(node).module, self._outermost)
        }

    @cached_property
    def _outermost(self) -> list[str]:
        found: list[str] = []
        for module in sorted(_modules_of(self._program)):
            if _matches(self._modules, module) and not _is_inside(module, found):
                found.append(module)
        return found

    def _inside(self, module: str, calls: Iterable[fx.Node]) -> set[str]:
        """Return what a module makes but for what others use or what leaves."""
        inside = {n for n in calls if _is_inside(info(n).module, [module])}
        leaving = {value_of(node).node for node, _ in self._program.results()}
        kept: set[fx.Node] = set()
        for node in reversed(list(self._program.calls())):
            if node in inside and not (node in leaving or node in kept):
                continue
            is_used = node not in inside and info(node).phase is Phase.FORWARD
            is_view = node in inside and self._is_free(node)
            if is_used or is_view:  # a view that is kept keeps what it is of
                kept |= {value.node for value in operands(node)}
        return {info(node).key for node in inside - kept - leaving}

    def _check(self) -> None:
        for pattern in (*self._nodes, *self._entering, *self._modules):
            what, names = _names_for(self._program, pattern)
            if not any(fnmatchcase(name, pattern) for name in names):
                raise BadOptions(f"recompute: {pattern!r} is the name of no {what}")


def patterns_of(program: Program, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``patterns`` that match something of a stage of a program.

    Boxings are known once a plan is made, so what asks for them is all there.
    """
    return tuple(
        pattern
        for pattern in patterns
        if " -> " in pattern
        or any(fnmatchcase(n, pattern) for n in _names_for(program, pattern)[1])
    )


def _names_for(program: Program, pattern: str) -> tuple[str, Collection[str]]:
    """Return what a pattern is about, by its form, and the names of all such things."""
    if "/" in pattern:
        return "node", [info(node).key for node in program.calls()]
    if ":" in pattern:
        entering = [info(node).key for node, _ in program.placeholders()]
        return "parameter, buffer or input", entering
    return "module", _modules_of(program)


def _modules_of(program: Program) -> set[str]:
    """Return the paths of all modules that call an op, and of those around them."""
    found: set[str] = set()
    for node in program.calls():
        parts = info(node).module.split(".")
        found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return found - {""}


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_inside(module: str, others: Iterable[str]) -> bool:
    return any(module == o or module.startswith(f"{o}.") for o in others)
