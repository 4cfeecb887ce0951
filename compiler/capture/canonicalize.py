"""Bring a freshly traced graph into the one form that rules are written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from partita.compiler.capture import attention as attention  # defines the op
from partita.compiler.capture.draws import rewrite_draws
from partita.compiler.capture.keys import short_op
from partita.compiler.capture.known_masks import name_known_masks
from partita.compiler.capture.one_view import join_views
from partita.compiler.capture.own_rows import gather_own_rows
from partita.compiler.capture.rejoined import join_pieces
from partita.compiler.capture.torch_private import pytree
from partita.compiler.capture.unsort import unsort
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    Phase,
    Program,
    Value,
    info,
    operand_nodes,
    operands,
    set_info,
    type_of,
    update_info,
    value_of,
)

aten = torch.ops.aten

# These hand on their first argument; what they add matters only to eager autograd.
_TRANSPARENT = {
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.resolve_conj.default,
    aten.resolve_neg.default,
}

# The same ops without a check of the indices, or as a mark on a view.
_SAME = {
    aten._unsafe_index.Tensor: aten.index.Tensor,
    aten._unsafe_index_put.default: aten.index_put.default,
    aten._neg_view.default: aten.neg.default,
}

_CHECKS = {
    aten._assert_tensor_metadata.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}


_NUMBERS = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)


def drop_checks(module: fx.GraphModule) -> None:
    """Remove checks of values, and the numbers read from tensors for them, in place.

    Such a number is known only when the model runs; here it would be read while the
    backward is traced, where tensors have no values.
    """
    has_changed = False
    for node in reversed(module.graph.nodes):
        is_number = isinstance(node.meta.get("val"), _NUMBERS)
        is_unused = node.op == "call_function" and not node.users
        if node.target in _CHECKS or (is_unused and is_number):
            module.graph.erase_node(node)
            has_changed = True
    if has_changed:
        module.recompile()


def lift_own_tensors(
    module: fx.GraphModule, constants: Mapping[str, Any], model: torch.nn.Module
) -> None:
    """Make constants of tensors in plain attributes of ``model``, in place.

    Tracing takes a real tensor only where its values are copied. One that is not the
    model's, such as a target that a loss function closes over, stays an error.
    """
    leaves = pytree.tree_leaves([list(vars(m).values()) for m in model.modules()])
    own = {id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    lifted = [name for name, value in constants.items() if id(value) in own]
    for name in lifted:
        for node in module.graph.find_nodes(op="get_attr", target=name):
            users = list(node.users)
            with module.graph.inserting_after(node):
                copy = module.graph.call_function(aten.lift_fresh_copy.default, (node,))
            copy.meta = dict(node.meta)
            for user in users:
                user.replace_input_with(node, copy)
    if lifted:
        module.recompile()


def canonicalize(program: Program) -> Program:
    """Return ``program`` in canonical form; its infos keep keys and source lines.

    * no aliases, detaches, fresh copies or checks, nothing unused, and no power of one
      that is multiplied
    * every view that only regroups dims is ``reshape`` to a stated shape, every one
      that reorders them is ``permute``; a shard's strides may differ from the whole
      tensor's, so that views which need them must be able to copy
    * constants are ``full`` of a stated shape; splits and slices state sizes and
      bounds; ``cat`` has no empty operands
    * what is taken apart and joined again is what it was (rejoined.py)
    * random numbers are drawn by seed and element (random_numbers.py)
    * attention is told what its mask says, where there is a word for that
      (known_masks.py)
    * rows are not sorted where it does not matter how they lie (unsort.py)
    * what each row takes of itself is a gather (own_rows.py)
    * views of views are one (one_view.py)
    * positions that are counted (``arange`` of integers) are constants

    Raises:
        CaptureFailed: for an op that draws in a way that depends on the layout.
    """
    program = rewrite_draws(program.copy())
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _TRANSPARENT:
            node.replace_all_uses_with(operand_nodes(node)[0])
            graph.erase_node(node)
        elif node.target in _CHECKS:
            graph.erase_node(node)
        elif same := _SAME.get(node.target):
            node.target = same
        elif rewrite := _REWRITES.get(node.target):
            rewrite(node)
    join_pieces(program)
    name_known_masks(program)
    unsort(program)
    gather_own_rows(program)
    join_views(program)
    program = _with_counted_constants(_without_unused_constants(program))
    graph.lint()
    program.graph_module.recompile()
    return program


def _with_counted_constants(program: Program) -> Program:
    """Return the program with positions that it counts as constants, equal ones as one.

    Draws, masks and tables count the same positions in every step; a constant is made
    once, and a rank holds the part of it that it needs.
    """
    inputs, constants = list(program.inputs), dict(program.constants)
    made: dict[str, fx.Node] = {}
    for node in list(program.graph.nodes):
        if node.target not in _RANGES or operand_nodes(node):
            continue
        fact = info(node)
        (type_,) = fact.types
        if type_ is None or type_.dtype.is_floating_point:
            continue
        if type_.numel > _MOST_COUNTED:
            continue
        numbers = ",".join(str(arg) for arg in node.args)
        name = f"{short_op(node)}({numbers}):{type_}"
        if name not in made:
            kwargs = {**node.kwargs, "device": torch.device("cpu")}
            constants[name] = node.target(*node.args, **kwargs)
            last = program.graph.find_nodes(op="placeholder")[-1]
            with program.graph.inserting_after(last):
                made[name] = program.graph.placeholder(f"counted_{len(made)}")
            made[name].meta = {}
            role = InputRole(InputKind.CONSTANT, name)
            key = f"{role.kind}:{role.name}"
            set_info(made[name], NodeInfo(key, Phase.FORWARD, fact.types))
            inputs.append(role)
        node.replace_all_uses_with(made[name])
        program.graph.erase_node(node)
    return replace(program, inputs=tuple(inputs), constants=constants)


def _without_unused_constants(program: Program) -> Program:
    inputs: list[InputRole] = []
    constants: dict[str, torch.Tensor] = {}
    for node, role in program.placeholders():
        if role.kind is InputKind.CONSTANT and not node.users:
            program.graph.erase_node(node)
            continue
        inputs.append(role)
        if role.kind is InputKind.CONSTANT:
            constants[role.name] = program.constants[role.name]
    return replace(program, inputs=tuple(inputs), constants=constants)


def _shape(node: fx.Node) -> list[int]:
    return list(type_of(Value(node, 0)).shape)


def _to_reshape(node: fx.Node) -> None:
    node.target = aten.reshape.default
    node.args, node.kwargs = (node.args[0], _shape(node)), {}


def _to_permute(node: fx.Node) -> None:
    order = list(range(type_of(operands(node)[0]).ndim))
    if node.target is aten.permute.default:
        order = [dim % max(len(order), 1) for dim in node.args[1]]  # type: ignore[union-attr]
    elif node.target is aten.t.default:
        order.reverse()
    else:
        first, second = (int(dim) for dim in node.args[1:3])  # type: ignore[arg-type]
        if order:
            order[first], order[second] = order[second], order[first]
    node.target = aten.permute.default
    node.args = (node.args[0], order)


def _state_expand(node: fx.Node) -> None:
    node.args, node.kwargs = (node.args[0], _shape(node)), {}


def _state_split(node: fx.Node) -> None:
    source, size = node.args[:2]
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    whole = type_of(operands(node)[0])
    dim = int(dim) % whole.ndim  # type: ignore[arg-type]
    if isinstance(size, int):
        total = whole.shape[dim]
        size = [min(size, total - at) for at in range(0, total, size)]
    node.target = aten.split_with_sizes.default
    node.args, node.kwargs = (source, list(size), dim), {}  # type: ignore[arg-type]


def _state_slice(node: fx.Node) -> None:
    whole = type_of(operands(node)[0])
    source, dim, start, stop, step = (
        *node.args,
        *(0, None, None, 1)[len(node.args) - 1 :],
    )
    dim = int(dim) % whole.ndim  # type: ignore[arg-type]
    bounds = slice(start, stop, step).indices(whole.shape[dim])
    node.args = (source, dim, *bounds)


def _drop_empty_operands(node: fx.Node) -> None:
    dim = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))  # type: ignore[arg-type]
    joined = [(n, type_of(value_of(n)).shape) for n in operand_nodes(node)]
    parts = [n for n, shape in joined if shape != (0,) and shape[dim]]
    if not parts:
        return
    if len(parts) == 1 and type_of(value_of(parts[0])) == type_of(Value(node, 0)):
        node.replace_all_uses_with(parts[0])
        node.graph.erase_node(node)
        return
    ndim = type_of(value_of(parts[0])).ndim
    node.args, node.kwargs = (parts, dim % ndim), {}


def _drop_power_of_one(node: fx.Node) -> None:
    """Hand on what is raised to 1 before it is multiplied: it needs no memory.

    A norm's backward raises to one less than its forward, which squares.
    """
    source, exponent = node.args
    are_products = all(user.target in _PRODUCTS for user in node.users)
    is_same = type_of(operands(node)[0]) == type_of(Value(node, 0))
    if exponent == 1 and are_products and is_same:
        assert isinstance(source, fx.Node)
        node.replace_all_uses_with(source)
        node.graph.erase_node(node)


def _to_full(node: fx.Node) -> None:
    """Make a constant of a stated shape: what it was made after has no part in it."""
    value = _CONSTANTS.get(node.target)
    if value is None:
        value = node.args[_STATED[node.target]]
    type_ = type_of(Value(node, 0))
    node.target = aten.full.default
    node.args = (list(type_.shape), value)
    device = node.kwargs.get("device") or torch.device("cpu")
    node.kwargs = {"dtype": type_.dtype, "device": device}


_PRODUCTS = {aten.mul.Tensor, aten.mul.Scalar}

_RANGES: set[object] = {
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.tril_indices.default,
    aten.triu_indices.default,
}
_MOST_COUNTED = 1 << 16

_STATED: dict[object, int] = {
    aten.scalar_tensor.default: 0,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
}
"""Where among its arguments an op has the value that it fills a tensor with."""

_CONSTANTS: dict[object, int] = {
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.empty.memory_format: 0,  # where any value is as good
    aten.empty_like.default: 0,
    aten.new_empty.default: 0,
    aten.empty_strided.default: 0,  # whose strides no other op asks for
    aten.new_empty_strided.default: 0,
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
}


def _to_conjugate(node: fx.Node) -> None:
    """Conjugate a tensor, or the number that a trace knows it to be."""
    number = node.args[0]
    if isinstance(number, fx.Node):
        node.target = aten.conj_physical.default
        return
    assert isinstance(number, complex | float | int)
    type_ = type_of(Value(node, 0))
    node.target = aten.full.default
    node.args = (list(type_.shape), number.conjugate())
    node.kwargs = {"dtype": type_.dtype, "device": torch.device("cpu")}


def _state_statistics(node: fx.Node) -> None:
    """Give a norm's statistics their dtype: of its parameters, if that is wider.

    Torch's fake tensors have that of what is normalized.
    """
    normalized, *parameters = (type_of(value).dtype for value in operands(node))
    if parameters and normalized.itemsize < parameters[0].itemsize:
        out, *statistics = info(node).types
        wide = [t and replace(t, dtype=parameters[0]) for t in statistics[:2]]
        update_info(node, types=(out, *wide, *statistics[2:]))


def _drop_overwritten(node: fx.Node) -> None:
    """Hand on what a whole tensor is overwritten with, if it is of the same type."""
    _, source = operands(node)
    if type_of(source) == type_of(Value(node, 0)):
        node.replace_all_uses_with(operand_nodes(node)[1])
        node.graph.erase_node(node)


_REWRITES: dict[object, Callable[[fx.Node], None]] = {
    aten._conj.default: _to_conjugate,
    aten.view.default: _to_reshape,
    aten._unsafe_view.default: _to_reshape,
    aten.unsqueeze.default: _to_reshape,
    aten.squeeze.default: _to_reshape,
    aten.squeeze.dim: _to_reshape,
    aten.squeeze.dims: _to_reshape,
    aten.t.default: _to_permute,
    aten.transpose.int: _to_permute,
    aten.permute.default: _to_permute,
    aten.expand.default: _state_expand,
    aten.split.Tensor: _state_split,
    aten.split_with_sizes.default: _state_split,
    aten.unsafe_split.Tensor: _state_split,
    aten.unsafe_split_with_sizes.default: _state_split,
    aten.slice.Tensor: _state_slice,
    aten.cat.default: _drop_empty_operands,
    aten.copy.default: _drop_overwritten,
    aten.pow.Tensor_Scalar: _drop_power_of_one,
    aten.native_layer_norm.default: _state_statistics,
    aten._native_batch_norm_legit.no_stats: _state_statistics,
    aten._native_batch_norm_legit_functional.default: _state_statistics,
    **dict.fromkeys((*_STATED, *_CONSTANTS), _to_full),
}
