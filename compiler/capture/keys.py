"""Stable keys, phases and source lines for the nodes of a joint graph.

A forward node's key is ``module path/op/ordinal``; a backward node's is the key of
the forward node it differentiates, ``~grad``, op and ordinal. Neither depends on fx
names or on the position in the graph, so keys survive a re-capture and edits
elsewhere in the model (DESIGN, decision 4).
"""

from __future__ import annotations

import operator
import os
import re
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from torch import fx

from partita.compiler.ir.program import Phase

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_GENERATED = ("<string>", "<eval_with_key>")  # what dataclasses and fx make
_TORCH_ROOT = f"{Path(torch.__file__).parent}{os.sep}"
_OWN_ROOT = f"{Path(__file__).parents[2]}{os.sep}"  # the package, links not followed
Frame = tuple[str, str]
"""A file and a line in it."""

_SITE_ROOTS = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def short_op(node: fx.Node) -> str:
    """Return ``addmm`` for ``aten.addmm.default``, ``add.Tensor`` for others."""
    name = str(node.target)
    return name.removeprefix("aten.").removesuffix(".default")


def is_backward(node: fx.Node) -> bool:
    """Whether autograd's backward made ``node``."""
    return node.meta.get("partitioner_tag") == "is_backward"


def _shorten(file: str) -> str:
    for root in _SITE_ROOTS:
        if file.startswith(root):
            return str(Path(file).relative_to(root))
    path = Path(file)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def find_frames(trace: str) -> list[Frame]:
    """Return the frames of a printed traceback, the innermost last."""
    return [(match["file"], match["line"]) for match in _FRAME.finditer(trace)]


def frame_text(file: str, line: int) -> str:
    """Return a frame as ``find_frames`` finds it."""
    return f'File "{file}", line {line}'


@cache
def is_user_file(file: str) -> bool:
    """Whether a file of code is neither torch's nor Partita's."""
    return not file.startswith((_TORCH_ROOT, _OWN_ROOT, *_GENERATED))


def user_frames(frames: list[Frame]) -> list[Frame]:
    """Return the frames that are neither torch's nor Partita's."""
    return [frame for frame in frames if is_user_file(frame[0])]


def source_line(node: fx.Node) -> str:
    """Return ``file.py:line`` of the innermost frame that is the user's own."""
    frames = find_frames(node.meta.get("stack_trace") or "")
    chosen = user_frames(frames) or frames
    return f"{_shorten(chosen[-1][0])}:{chosen[-1][1]}" if chosen else ""


def module_path(node: fx.Node, prefix: str) -> str:
    """Return the path of the module that called ``node``, without ``prefix``."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    path = re.sub(r"@\d+$", "", path)  # export marks a second call of one module
    if path == prefix:
        return ""
    return path.removeprefix(f"{prefix}.")


def _call_nodes(graph: fx.Graph) -> list[fx.Node]:
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]


def assign_keys(graph: fx.Graph, prefix: str) -> dict[fx.Node, str]:
    """Return the key of every call in ``graph``."""
    counts: Counter[str] = Counter()
    keys: dict[fx.Node, str] = {}
    forward: dict[object, str] = {}  # by autograd's sequence number

    def number(base: str) -> str:
        counts[base] += 1
        return f"{base}/{counts[base] - 1}"

    for node in _call_nodes(graph):
        sequence = node.meta.get("seq_nr")
        if not is_backward(node):
            path = module_path(node, prefix)
            keys[node] = number(f"{path}/{short_op(node)}" if path else short_op(node))
            forward.setdefault(sequence, keys[node])
        elif node.meta.get("is_gradient_acc") or sequence not in forward:
            # The sum of a value's gradients: named after the one that joins them last,
            # for the others are such sums themselves, over all that comes later.
            joined = [key for n in node.all_input_nodes if (key := _key_of(n, keys))]
            base = joined[-1].split("~grad")[0] if joined else "~sum"
            keys[node] = number(f"{base}~grad/{short_op(node)}")
        else:
            keys[node] = number(f"{forward[sequence]}~grad/{short_op(node)}")
    return keys


def _key_of(node: fx.Node | None, keys: dict[fx.Node, str]) -> str:
    while node is not None and node.target is operator.getitem:
        (node, *_) = node.all_input_nodes
    return keys.get(node, "") if node is not None else ""


def assign_phases(
    graph: fx.Graph, gradients: dict[fx.Node, set[str]]
) -> dict[fx.Node, Phase]:
    """Return the phase of every call.

    A backward node whose result reaches the gradient of only one parameter is in the
    weight half of the backward; the others are in the input half.

    Args:
        graph: the joint graph.
        gradients: the parameters whose gradient each output node is.
    """
    reaches: dict[fx.Node, set[str]] = {n: set(names) for n, names in gradients.items()}
    for node in reversed(graph.nodes):
        mine = reaches.setdefault(node, set())
        for user in node.users:
            mine |= reaches.get(user, set())
    phases: dict[fx.Node, Phase] = {}
    for node in _call_nodes(graph):
        if not is_backward(node):
            phases[node] = Phase.FORWARD
        elif len(reaches[node]) == 1:
            phases[node] = Phase.BACKWARD_WEIGHT
        else:
            phases[node] = Phase.BACKWARD_INPUT
    return phases
