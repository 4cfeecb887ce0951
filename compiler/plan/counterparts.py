"""Which thing of a program, or of its plan, is which of an older plan of the model.

A key names a call by its module's path, its op and its ordinal there. A module that got
another name, or an op put before others of its kind, changes keys of what stayed as it
was. So calls are compared by what is around them: two are counterparts when op, shapes
and neighbours agree, then when fewer of these do, first within a module of one path,
then between calls that are found already. What enters is what its users take it for;
the backward of a call follows it.

Source: labels by neighbourhood after N. Shervashidze et al., "Weisfeiler-Lehman Graph
Kernels", JMLR 12, 2011; sequences by ``difflib``, which looks for the longest block.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TypeVar

from partita.compiler.ir.again import is_again
from partita.compiler.ir.program import (
    InputKind,
    NodeInfo,
    Phase,
    Program,
    info,
    op_name,
    operands,
)
from partita.compiler.ir.stages import at_any_stage
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Document
from partita.compiler.plan.rename import Renaming

D = TypeVar("D", bound=Document)

_AROUND = (2, 1)
"""So many calls around are looked at, first the more."""
_BACKWARD = "~grad"
_GONE = " (before)"


def called_as(document: D, program: Program) -> tuple[D, dict[str, str]]:
    """Return a plan whose things are called as their counterparts in ``program``.

    What has none keeps its name; where something else has that now, it is told apart.

    Returns:
        The plan, and the new keys of what is called otherwise now, by the old ones.
    """
    return _called_as(document, _Graph.of_program(program))


def called_as_in(document: D, other: Document) -> tuple[D, dict[str, str]]:
    """Return a plan whose things are called as their counterparts in another plan.

    As ``called_as`` does for a program.
    """
    return _called_as(document, _Graph.of_plan(other))


def _called_as(document: D, new: _Graph) -> tuple[D, dict[str, str]]:
    old = _Graph.of_plan(document)
    keys = _counterparts(old, new)
    taken = {*keys.values(), *new.calls}
    others = {key: name for key, name in keys.items() if key != name}
    for key in old.calls:
        if key not in keys:
            keys[key] = key + _GONE if key in taken else key
    if all(key == name for key, name in keys.items()):
        return document, {}
    renaming = _renaming(document, keys)
    return renaming.document(document, document.model.fingerprint), others


def _renaming(document: Document, keys: Mapping[str, str]) -> Renaming:
    """Return what gives a plan's things other names, and nothing else."""
    names = {output.name: output.name for output in document.outputs}
    names |= {name: name for name in (*document.parameters, *document.buffers)}
    roles = {key: node.role for key, node in document.nodes.items() if node.role}
    elsewhere = {key: key for key in roles if key not in keys}
    names |= {roles[key].name: roles[key].name for key in elsewhere}
    # What stays from step to step comes last: an input may have its name.
    for key in sorted(roles.keys() & keys.keys(), key=lambda k: roles[k].kind.is_state):
        role = roles[key]
        names[role.name] = keys[key].removeprefix(f"{role.kind}:")
    known = {**keys, **elsewhere} | {
        str(output): str(replace(output, name=names[output.name]))
        for output in document.outputs
    }
    others = Renaming(known, names, {}, {})
    facts = {
        name: NodeInfo(
            name, node.phase, node.types, node.module, node.source, stage=node.stage
        )
        for key, node in document.nodes.items()
        for name in [others.key(key)]
    }
    state = {**document.parameters, **document.buffers}
    aliases = {
        names[name]: tuple(names.get(alias, alias) for alias in held.aliases)
        for name, held in state.items()
    }
    return replace(others, facts=facts, aliases=aliases)


@dataclass
class _Call:
    """A call of a model, or what enters it; ``operands`` are the keys of its tensors.

    ``is_whole`` is false where they are known only in some order; ``op`` is the kind of
    what enters.
    """

    op: str
    module: str
    phase: Phase
    types: tuple[TensorType | None, ...]
    operands: list[str]
    is_whole: bool = True
    is_entering: bool = False


@dataclass
class _Graph:
    """The calls of a plan or of a program by key, in order, and who uses each."""

    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])

    @classmethod
    def of_plan(cls, document: Document) -> _Graph:
        whole = {p: key for key, one in document.expanded.items() for p in one.nodes}
        graph = cls()
        for name in document.order:
            node, key = document.nodes[name], whole.get(name, name)
            if is_again(name) or at_any_stage(name) != name:
                continue
            used = [at_any_stage(ref.key) for ref in node.operands]
            used = [whole.get(each, each) for each in used]
            used = [each for each in used if each != key and not is_again(each)]
            if key in graph.calls:
                graph.calls[key].operands += used
            elif node.role is not None:
                graph._add_entering(key, node.role.kind, node.phase, node.types)
            else:
                is_whole = key == name
                op = node.op if is_whole else document.expanded[key].op
                types = node.types if is_whole else ()
                graph.calls[key] = _Call(
                    op, node.module, node.phase, types, used, is_whole
                )
        return graph

    @classmethod
    def of_program(cls, program: Program) -> _Graph:
        graph = cls()
        for node, role in program.placeholders():
            fact = info(node)
            graph._add_entering(fact.key, role.kind, fact.phase, fact.types)
        for node in program.calls():
            fact = info(node)
            used = [info(value.node).key for value in operands(node)]
            graph.calls[fact.key] = _Call(
                op_name(node), fact.module, fact.phase, fact.types, used
            )
        return graph

    def _add_entering(
        self,
        key: str,
        kind: InputKind,
        phase: Phase,
        types: tuple[TensorType | None, ...],
    ) -> None:
        self.calls[key] = _Call(str(kind), "", phase, types, [], is_entering=True)

    def is_entering(self, key: str) -> bool:
        """Whether something enters under ``key``."""
        return key in self.calls and self.calls[key].is_entering

    def forward(self) -> list[str]:
        """Return the keys of the calls of the forward, in order."""
        return [
            key
            for key, call in self.calls.items()
            if call.phase is Phase.FORWARD and not call.is_entering
        ]


def _counterparts(old: _Graph, new: _Graph) -> dict[str, str]:
    """Return keys of ``new`` by those of ``old``."""
    found: dict[str, str] = {}
    for with_types in (True, False):
        around = [_labels_of(old, new, with_types, radius) for radius in _AROUND]
        for labels in around:
            found |= _within_modules(old, new, labels, found)
        for labels in around:
            found |= _in_between(old, new, labels, found)
    for with_types in (True, False):
        labels = _labels_of(old, new, with_types, 0)
        found |= _within_modules(old, new, labels, found)
    found |= _entering(old, new, found)
    return found | _backwards(old, new, found)


def _backwards(old: _Graph, new: _Graph, found: Mapping[str, str]) -> dict[str, str]:
    """Return counterparts of what belongs to the backward of a call.

    Those of calls that have counterparts come first; of one left out since, what is
    left may still be the backward of what has its name now.
    """
    modules = _modules(old, new, found)
    parts = [(key, *key.partition(_BACKWARD)) for key in old.calls if _BACKWARD in key]
    parts.sort(key=lambda part: part[1] not in found)
    taken: dict[str, str] = {}
    for key, forward, joint, rest in parts:
        call = old.calls[key]
        if forward not in found and call.module in modules:
            forward = modules[call.module] + forward.removeprefix(call.module)
        name = found.get(forward, forward) + joint + rest
        if name in new.calls and new.calls[name].op == call.op:
            taken.setdefault(name, key)
    return {key: name for name, key in taken.items()}


def _modules(old: _Graph, new: _Graph, found: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of modules by those that most of their calls had."""
    pairs = Counter(
        (old.calls[key].module, new.calls[name].module) for key, name in found.items()
    )
    return dict(pair for pair, _ in reversed(pairs.most_common()))


_Labels = tuple[dict[str, int], dict[str, int]]
"""A number per call of the forward and per input of two graphs, equal where alike."""


def _labels_of(old: _Graph, new: _Graph, with_types: bool, radius: int) -> _Labels:
    numbers: dict[object, int] = {}
    first, second = (_labels(g, with_types, radius, numbers) for g in (old, new))
    return first, second


def _labels(
    graph: _Graph, with_types: bool, radius: int, numbers: dict[object, int]
) -> dict[str, int]:
    def number(label: object) -> int:
        return numbers.setdefault(label, len(numbers))

    kept = {k: c for k, c in graph.calls.items() if c.phase is Phase.FORWARD}
    users: dict[str, list[str]] = defaultdict(list)
    for key, call in kept.items():
        for used in call.operands:
            users[used].append(key)
    labels = {
        key: number((call.op, call.types if with_types and call.is_whole else None))
        for key, call in kept.items()
    }
    for _ in range(radius):
        labels = {
            key: number(
                (
                    labels[key],
                    tuple(sorted({labels[k] for k in call.operands if k in labels})),
                    tuple(sorted({labels[k] for k in users[key]})),
                )
            )
            for key, call in kept.items()
        }
    return labels


def _within_modules(
    old: _Graph, new: _Graph, labels: _Labels, found: Mapping[str, str]
) -> dict[str, str]:
    """Return counterparts among the calls that modules of one path have left.

    The path is the one that most of what is found of the module has now.
    """
    taken, modules = set(found.values()), _modules(old, new, found)
    left: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for key in old.forward():
        if key not in found:
            path = old.calls[key].module
            left[modules.get(path, path)][0].append(key)
    for key in new.forward():
        if key not in taken:
            left[new.calls[key].module][1].append(key)
    return dict(
        pair
        for before, after in left.values()
        for pair in _matched(
            before,
            after,
            [labels[0][key] for key in before],
            [labels[1][key] for key in after],
        )
    )


def _in_between(
    old: _Graph, new: _Graph, labels: _Labels, found: Mapping[str, str]
) -> dict[str, str]:
    """Return counterparts among all that is left, between those that are known."""
    names = {name: name for name in found.values()}
    before, after = old.forward(), new.forward()
    marked: list[object] = [found.get(key, labels[0][key]) for key in before]
    wanted: list[object] = [names.get(key, labels[1][key]) for key in after]
    pairs = _matched(before, after, marked, wanted)
    return {key: name for key, name in pairs if key not in found}


def _matched(
    before: Sequence[str],
    after: Sequence[str],
    marked: Sequence[object],
    wanted: Sequence[object],
) -> Iterator[tuple[str, str]]:
    """Yield pairs of two sequences whose marks agree, in order."""
    matcher = SequenceMatcher(None, marked, wanted, autojunk=False)
    for block in matcher.get_matching_blocks():
        first, second = before[block.a :], after[block.b :]
        yield from zip(first[: block.size], second[: block.size], strict=True)


def _entering(old: _Graph, new: _Graph, found: Mapping[str, str]) -> dict[str, str]:
    """Return what enters by what counterparts take in one place, else by name."""
    votes: Counter[tuple[str, str]] = Counter()
    for key, name in found.items():
        mine, its = old.calls[key], new.calls[name]
        if not mine.is_whole or len(mine.operands) != len(its.operands):
            continue
        for pair in zip(mine.operands, its.operands, strict=True):
            if old.is_entering(pair[0]) and new.is_entering(pair[1]):
                votes[pair] += 1
    entering: dict[str, str] = {}
    ordered = sorted(votes, key=lambda pair: (-votes[pair], pair[0] != pair[1]))
    by_name = [(key, key) for key in old.calls if old.is_entering(key)]
    taken: set[str] = set()
    for key, name in (*ordered, *by_name):
        is_free = key not in entering and name not in taken and name in new.calls
        if is_free and old.calls[key].op == new.calls[name].op:
            entering[key] = name
            taken.add(name)
    return entering
