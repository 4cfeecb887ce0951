"""The example inputs in the document: names, types, constants and their pytree.

The tree is torch's own JSON form. torch's reader imports whatever module the context
of a named tuple, an enum or a defaultdict names, which a document from a stranger
must not make it do: only trees of tuples, lists and dicts are kept and read.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

from partita.compiler.capture.inputs import Constant
from partita.compiler.capture.inputs import InputSpec as CaptureSpec
from partita.compiler.errors import BadPlan
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.input_spec import InputLeaf, InputSpec

_PLAIN = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
_NODE_KEYS = {"type", "context", "children_spec"}


def from_capture(spec: CaptureSpec) -> InputSpec:
    """Return the record of what capture knows of a call's arguments.

    The record's tree is ``None`` where the tree has more than tuples, lists and dicts.
    """
    leaves = tuple(_leaf(name, leaf) for name, leaf in spec.leaves.items())
    tree = json.loads(spec.tree)
    try:
        _count_leaves(tree)
    except BadPlan:
        tree = None
    return InputSpec(leaves, tree)


def _leaf(name: str, leaf: TensorType | Constant) -> InputLeaf:
    if isinstance(leaf, TensorType):
        return InputLeaf(name, tensor=leaf)
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return InputLeaf(name, constant={"float": str(leaf)})
    return InputLeaf(name, constant=leaf)


def to_capture(spec: InputSpec) -> CaptureSpec:
    """Return what capture needs to make the call again.

    Raises:
        BadPlan: when the inputs had a structure that a plan does not keep.
    """
    if spec.tree is None:
        raise BadPlan(
            "inputs.tree: the structure of the example inputs was not kept, as it has "
            "more than tuples, lists and dicts; plan again with such inputs"
        )
    leaves = {
        leaf.name: leaf.tensor or _read_constant(leaf.constant) for leaf in spec.leaves
    }
    return CaptureSpec(leaves, json.dumps(spec.tree))


def _read_constant(value: Any) -> Constant:
    return float(value["float"]) if isinstance(value, dict) else value


def check_inputs(spec: InputSpec) -> None:
    """Check that names differ, constants are plain, and the tree has these leaves.

    Raises:
        BadPlan: naming the first part that is otherwise.
    """
    names = [leaf.name for leaf in spec.leaves]
    if len(set(names)) != len(names):
        raise BadPlan("inputs.leaves: found a name twice, wanted each once")
    for index, leaf in enumerate(spec.leaves):
        _check_constant(f"inputs.leaves[{index}].constant", leaf)
    if spec.tree is not None and (found := _count_leaves(spec.tree)) != len(names):
        raise BadPlan(f"inputs.tree: found {found} leaves, wanted {len(names)}")


def check_microbatches(count: int, spec: InputSpec) -> None:
    """Check that a batch has rows enough for so many parts.

    Raises:
        BadPlan: when no input can be cut so.
    """
    shapes = (tensor.shape for tensor in spec.tensors.values())
    most = max([1, *(shape[0] for shape in shapes if shape)])
    if count > most:
        raise BadPlan(
            f"microbatches: found {count}, wanted at most {most}: the inputs have no "
            "more rows"
        )


def _check_constant(path: str, leaf: InputLeaf) -> None:
    value = leaf.constant
    if leaf.tensor is not None and value is not None:
        raise BadPlan(f"{path}: found one beside a tensor type, wanted null")
    if isinstance(value, dict):
        if value not in ({"float": "inf"}, {"float": "-inf"}, {"float": "nan"}):
            raise BadPlan(f'{path}: found an object, wanted e.g. {{"float": "inf"}}')
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise BadPlan(f"{path}: found a list, wanted text, a number, true, false, null")


def _count_leaves(tree: Any) -> int:
    """Return the number of leaves of a tree in torch's JSON form."""
    if not isinstance(tree, list) or len(cast("list[Any]", tree)) != 2 or tree[0] != 1:
        raise BadPlan("inputs.tree: wanted a pytree of torch, protocol 1: [1, {...}]")
    return _count_below(tree[1], "inputs.tree[1]")


def _count_below(node: Any, path: str) -> int:
    if not isinstance(node, dict) or set(cast("dict[str, Any]", node)) != _NODE_KEYS:
        raise BadPlan(f"{path}: wanted the keys type, context and children_spec")
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if not isinstance(children, list):
        raise BadPlan(f"{path}.children_spec: wanted a list")
    children = cast("list[Any]", children)
    if kind is None and context is None and not children:
        return 1
    if kind not in _PLAIN:
        raise BadPlan(f"{path}.type: found {kind!r:.40}, wanted one of {_PLAIN}")
    if not _fits(context, len(children), has_keys=kind in _PLAIN[2:]):
        raise BadPlan(f"{path}.context: wanted the keys of a dict, else 'null'")
    return sum(
        _count_below(child, f"{path}.children_spec[{index}]")
        for index, child in enumerate(children)
    )


def _fits(context: Any, num_children: int, *, has_keys: bool) -> bool:
    """Whether a context is a list of that many plain keys, or null without keys."""
    if not isinstance(context, str):
        return False
    if not has_keys:
        return context == "null"
    try:
        keys = json.loads(context)
    except ValueError:
        return False
    if not isinstance(keys, list) or len(cast("list[Any]", keys)) != num_children:
        return False
    plain = str | int | float | bool | None
    return all(isinstance(key, plain) for key in cast("list[Any]", keys))
