"""Ops that draw random numbers, rewritten to draws that do not know the layout.

``rewrite_draws`` changes a captured program; ``eager_draws.py`` runs the user's eager
model with the same numbers, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import fx

from partita.compiler.capture.choices import (
    LEAST_EXPONENTIAL,
    multinomial,
    permutation,
)
from partita.compiler.capture.draw_writer import DrawWriter, argument_of
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    Phase,
    Program,
    Value,
    info,
    op_name,
    set_info,
    type_of,
)
from partita.compiler.ir.tensor_type import TensorType

aten = torch.ops.aten

SEED_TYPE = TensorType((), torch.int64)

LIKE = (
    aten.randint_like.default,
    aten.randint_like.generator,
    aten.randint_like.low_dtype,
    aten.randint_like.low_generator_dtype,
)
"""The ops that draw integers of a tensor's shape."""

WITH_LOW = (
    aten.randint.low,
    aten.randint.low_generator,
    aten.randint_like.low_dtype,
    aten.randint_like.low_generator_dtype,
)
"""The ops that draw integers from a lowest one on."""


def draws_numbers(target: object) -> bool:
    """Whether an op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _dropout(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    """Replace both results; return the kept mask, which stands for none of them."""
    x, probability, is_training = node.args
    assert isinstance(probability, float | int)
    keep = 1.0 - probability if is_training is not False else 1.0
    mask_type = TensorType(type_.shape, torch.bool)
    uniform = write.numbers(type_.shape, "uniform")
    mask = write.call(aten.lt.Scalar, (uniform, keep), mask_type)
    kept = write.call(aten.mul.Tensor, (x, mask), type_)
    out = write.scaled(kept, 1.0 / keep if keep else 0.0, 0.0)
    for user in list(node.users):
        user.replace_all_uses_with(mask if user.args[1] else out)
        node.graph.erase_node(user)
    return mask


def _random_slope(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    """Replace both results; return the slopes, of which the backward makes use."""
    x, low = node.args[0], float(argument_of(node, 2, "lower", 1 / 8))
    high = float(argument_of(node, 3, "upper", 1 / 3))
    is_training = argument_of(node, 4, "training", default=False)
    uniform = write.cast(write.numbers(type_.shape, "uniform"), type_.dtype)
    mean = 0.5 * (low + high)
    span, lowest = (high - low, low) if is_training else (0.0, mean)
    drawn = write.scaled(uniform, span, lowest)
    flags = TensorType(type_.shape, torch.bool)
    is_below = write.call(aten.le.Scalar, (x, 0), flags)
    one = TensorType((), type_.dtype)
    device = torch.device("cpu")
    ones = write.call(
        aten.full.default, ([], 1.0), one, dtype=type_.dtype, device=device
    )
    slopes = write.call(aten.where.self, (is_below, drawn, ones), type_)
    out = write.call(aten.mul.Tensor, (x, slopes), type_)
    for user in list(node.users):
        user.replace_all_uses_with(slopes if user.args[1] else out)
        node.graph.erase_node(user)
    return slopes


def _bernoulli(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    mask_type = TensorType(type_.shape, torch.bool)
    uniform = write.numbers(type_.shape, "uniform")
    if node.target is aten.bernoulli.p:
        mask = write.call(aten.lt.Scalar, (uniform, node.args[1]), mask_type)
    else:
        mask = write.call(aten.lt.Tensor, (uniform, node.args[0]), mask_type)
    return write.cast(mask, type_.dtype)


def _uniform(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    low, high = 0.0, 1.0
    if node.target is aten.uniform.default:
        low = float(argument_of(node, 1, "from", 0.0))
        high = float(argument_of(node, 2, "to", 1.0))
    uniform = write.cast(write.numbers(type_.shape, "uniform"), type_.dtype)
    return write.scaled(uniform, high - low, low)


def _normal(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    mean, std = 0.0, 1.0
    if node.target is aten.normal_functional.default:
        mean = float(argument_of(node, 1, "mean", 0.0))
        std = float(argument_of(node, 2, "std", 1.0))
    normal = write.cast(write.numbers(type_.shape, "normal"), type_.dtype)
    return write.scaled(normal, std, mean)


def _normal_around(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    mean, std = node.args[0], argument_of(node, 1, "std", 1.0)
    value = write.cast(write.numbers(type_.shape, "normal"), type_.dtype)
    value = write.call(aten.mul.Tensor, (value, std), type_)
    return write.call(aten.add.Tensor, (value, mean), type_)


def _exponential(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    rate = float(argument_of(node, 1, "lambd", 1.0))
    worked_in = torch.promote_types(type_.dtype, torch.float32)
    uniform = write.cast(write.numbers(type_.shape, "uniform"), worked_in)
    wide = TensorType(type_.shape, worked_in)
    log = write.call(aten.log.default, (write.scaled(uniform, -1.0, 1.0),), wide)
    negated = write.call(aten.neg.default, (log,), wide)
    floor = (negated, LEAST_EXPONENTIAL)
    value = write.call(aten.clamp_min.default, floor, wide)
    return write.cast(write.scaled(value, 1.0 / rate, 0.0), type_.dtype)


def _log_normal(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    mean = float(argument_of(node, 1, "mean", 1.0))
    std = float(argument_of(node, 2, "std", 2.0))
    worked_in = torch.promote_types(type_.dtype, torch.float32)
    normal = write.cast(write.numbers(type_.shape, "normal"), worked_in)
    wide = TensorType(type_.shape, worked_in)
    value = write.call(aten.exp.default, (write.scaled(normal, std, mean),), wide)
    return write.cast(value, type_.dtype)


def _integers(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    args = node.args[1:] if node.target in LIKE else node.args
    low, high = args[:2] if node.target in WITH_LOW else (0, args[0])
    assert isinstance(low, int)
    assert isinstance(high, int)
    integer = TensorType(type_.shape, torch.int64)
    bits = write.numbers(type_.shape, "bits")
    value = write.call(aten.remainder.Scalar, (bits, high - low), integer)
    if low:
        value = write.call(aten.add.Tensor, (value, low), integer)
    return write.cast(value, type_.dtype)


_REWRITES: dict[object, Callable[[DrawWriter, fx.Node, TensorType], fx.Node]] = {
    aten.native_dropout.default: _dropout,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.rand.default: _uniform,
    aten.rand.generator: _uniform,
    aten.rand_like.default: _uniform,
    aten.uniform.default: _uniform,
    aten.randn.default: _normal,
    aten.randn.generator: _normal,
    aten.randn_like.default: _normal,
    aten.normal_functional.default: _normal,
    aten.normal.Tensor_float: _normal_around,
    aten.normal.float_Tensor: _normal_around,
    aten.normal.Tensor_Tensor: _normal_around,
    aten.normal.float_float: _normal_around,
    aten.exponential.default: _exponential,
    aten.log_normal.default: _log_normal,
    aten.randint.default: _integers,
    aten.randint.generator: _integers,
    aten.randint.low: _integers,
    aten.randint.low_generator: _integers,
    **dict.fromkeys(LIKE, _integers),
    aten.rrelu_with_noise_functional.default: _random_slope,
    aten.randperm.default: permutation,
    aten.randperm.generator: permutation,
    aten.multinomial.default: multinomial,
}


def rewrite_draws(program: Program) -> Program:
    """Return ``program`` with every op that draws replaced, in place on its graph.

    ``draws`` of the result names the nodes that drew, in the order of their calls,
    those whose numbers nobody uses included.

    Raises:
        CaptureFailed: for an op that draws in a way that is not known here.
    """
    graph = program.graph
    drawing = [node for node in graph.nodes if draws_numbers(node.target)]
    if not drawing:
        return program
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        seed = graph.placeholder("seed")
    fact = NodeInfo(f"{InputKind.SEED}:seed", Phase.FORWARD, (SEED_TYPE,))
    set_info(seed, fact)
    keys: list[str] = []
    for node in drawing:
        rewrite = _REWRITES.get(node.target)
        fact = info(node)
        if rewrite is None:
            raise CaptureFailed(
                f"{fact.source}: {op_name(node)} in "
                f"{f'module {fact.module!r}' if fact.module else 'the model itself'} "
                "draws random numbers in a way that would depend on the layout; call "
                "model.eval(), or draw with dropout, bernoulli, rand, randn or randint"
            )
        keys.append(fact.key)
        type_ = type_of(Value(node, 0))
        with graph.inserting_before(node):
            value = rewrite(DrawWriter(node, seed), node, type_)
        node.replace_all_uses_with(value)
        graph.erase_node(node)
    inputs = (*program.inputs, InputRole(InputKind.SEED, "seed"))
    return replace(program, inputs=inputs, draws=tuple(keys))
