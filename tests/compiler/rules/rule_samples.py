"""One call or more of every op in the rule table, on small tensors.

Values are small integers in float64 where the op allows, so that sums in any order are
equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.compiler.rules import (
    chunk_samples,
    cut_samples,
    lattice_samples,
    norm_samples,
    own_samples,
)
from tests.compiler.rules.rule_values import call, fraction, ints, mask, positive, x
from torch import Tensor

from partita.testing.prover import Sample

aten = torch.ops.aten

UNARY = """
    _to_copy abs acos acosh asin asinh atan atanh bitwise_not ceil celu clone cos cosh
    digamma elu empty_like erf erfc erfinv exp exp2 expm1 floor frac gelu hardsigmoid
    hardswish hardtanh isfinite isinf isnan leaky_relu lgamma log log10 log1p log2
    log_sigmoid_forward logical_not logit mish nan_to_num neg ones_like reciprocal relu
    round rsqrt selu sgn sigmoid sign silu sin sinh softplus sqrt tan tanh trunc
    zeros_like
"""
FROM_MINUS_ONE_TO_ONE = {"acos", "asin", "atanh", "erfinv"}
POSITIVE = {
    "acosh",
    "digamma",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "rsqrt",
    "sqrt",
}
GRADIENT_OF_INPUT = """
    gelu hardsigmoid hardswish mish sigmoid silu tanh
"""
COMPARISONS = "eq ne ge gt le lt"
BINARY = "atan2 floor_divide fmax fmin hypot maximum minimum"
BATCHED_REDUCTIONS = "all any argmax argmin max min prod"


def unary() -> Iterator[Sample]:
    for name in UNARY.split():
        values = x
        if name in FROM_MINUS_ONE_TO_ONE:
            values = fraction
        elif name in POSITIVE:
            values = positive
        yield call(name, ints(0, 9, 4, 6) if name == "bitwise_not" else values(4, 6))
    yield call("_to_copy", x(4, 6), dtype=torch.float32)
    yield call("_to_copy", x(4, 6), dtype=torch.int64)
    yield call("_to_copy", ints(0, 5, 4, 6), dtype=torch.float64)
    yield call("clamp", x(4, 6), -1, 1)
    yield call("clamp_min", x(4, 6), 0)
    yield call("clamp_max", x(4, 6), 1)
    yield call("threshold", x(4, 6), 1, 0)
    yield call("full_like", x(4, 6), 3.0)
    yield call("fill.Scalar", x(4, 6), 3.0)
    yield call("floor_divide.Scalar", x(4, 6), 2)
    yield call("hardshrink", x(4, 6), 1)
    yield call("softshrink", x(4, 6), 1)
    yield call("pow.Tensor_Scalar", x(4, 6), 2)
    yield call("pow.Scalar", 2.0, x(4, 6))
    for name in ("add", "sub", "mul", "div", "remainder", "fmod"):
        yield call(f"{name}.Scalar", x(4, 6), 4)
    yield call("div.Scalar_mode", x(4, 6), 2, rounding_mode="floor")
    yield call("div.Scalar_mode", x(4, 6), 2, rounding_mode=None)
    for name in COMPARISONS.split():
        yield call(f"{name}.Scalar", x(4, 6), 1)
    for name in ("and", "or", "xor"):
        yield call(f"bitwise_{name}.Scalar", ints(0, 9, 4, 6), 5)
    for name in ("left", "right"):
        yield call(f"bitwise_{name}_shift.Tensor_Scalar", ints(0, 9, 4, 6), 1)


def elementwise() -> Iterator[Sample]:
    for name in ("add", "sub", "mul", "div"):
        yield call(f"{name}.Tensor", x(4, 6), positive(4, 6))
        yield call(f"{name}.Tensor", x(4, 1, 6), positive(4, 1))
        yield call(f"{name}.Tensor", x(4, 6), 4.0)
        yield call(f"{name}.Tensor", ints(0, 5, 4, 6), ints(1, 5, 6))
    yield call("add.Tensor", x(4, 6), x(6), alpha=2)
    for name in ("add.Tensor", "sub.Tensor", "add.Scalar", "sub.Scalar"):
        yield call(name, x(4, 6), 0)
    yield call("addcmul", x(1, 4, 1), x(3, 4, 2), x(1, 4, 1), value=-1)
    yield call("div.Tensor_mode", x(4, 6), positive(6), rounding_mode="trunc")
    yield call("pow.Tensor_Tensor", positive(4, 6), ints(0, 4, 4, 1))
    for name in COMPARISONS.split():
        yield call(f"{name}.Tensor", x(4, 6), x(6))
    for name in ("and", "or", "xor"):
        yield call(f"bitwise_{name}.Tensor", ints(0, 9, 4, 6), ints(0, 9, 6))
        yield call(f"logical_{name}", mask(4, 6), mask(4, 1))
    for name in ("left", "right"):
        yield call(f"bitwise_{name}_shift.Tensor", ints(0, 9, 4, 6), ints(0, 3, 6))
    for name in BINARY.split():
        yield call(name, x(4, 6), positive(6))
    yield call("copysign.Tensor", x(4, 6), x(6))
    yield call("xlogy.Tensor", x(4, 6), positive(6))
    for name in ("remainder", "fmod"):
        yield call(f"{name}.Tensor", x(4, 6), positive(6))
    yield call("clamp.Tensor", x(4, 6), None, x(6))
    yield call("clamp.Tensor", x(4, 6), x(6), x(4, 6))
    yield call("clamp_min.Tensor", x(4, 6), x(6))
    yield call("clamp_max.Tensor", x(4, 6), x(6))
    yield call("lerp.Scalar", x(4, 6), x(4, 6), 0.25)
    yield call("lerp.Tensor", x(4, 6), x(4, 6), fraction(6))
    yield call("masked_fill.Scalar", x(4, 6), mask(4, 6), 0)
    yield call("masked_fill.Scalar", x(4, 6), mask(6), 2)
    yield call("masked_fill.Tensor", x(4, 6), mask(4, 6), x())
    yield call("where.self", mask(4, 1), x(4, 6), x(6))
    yield call("where.self", mask(6), x(4, 6), x())
    yield call("where.ScalarOther", mask(4, 6), x(4, 6), 0.0)
    yield call("where.ScalarOther", mask(4, 6), x(4, 6), 1.0)
    yield call("where.ScalarSelf", mask(4, 6), 0, x(4, 6))
    yield call("where.Scalar", mask(4, 6), 2.0, 3.0)
    yield call("copy", x(4, 6), x(6))
    yield call("fill.Tensor", x(4, 6), x())
    yield call("_prelu_kernel", x(4, 6, 3), x(6, 1))


def elementwise_backward() -> Iterator[Sample]:
    for name in GRADIENT_OF_INPUT.split():
        yield call(f"{name}_backward", x(4, 6), x(4, 6))
    grad, at = x(4, 6), x(4, 6)
    yield call("hardshrink_backward", grad, at, 1)
    yield call("softshrink_backward", grad, at, 1)
    yield call("elu_backward", grad, 1.0, 1.0, 1.0, False, at)
    yield call("hardtanh_backward", grad, at, -1.0, 1.0)
    yield call("leaky_relu_backward", grad, at, 0.25, False)
    yield call("log_sigmoid_backward", grad, at, torch.exp(-at.abs()))
    yield call("native_dropout_backward", grad, mask(4, 6), 2.0)
    yield call("softplus_backward", grad, at, 1.0, 20.0)
    yield call("threshold_backward", grad, at, 0)
    yield call("_prelu_kernel_backward", x(4, 6), x(4, 6), x(4, 6))


def creation() -> Iterator[Sample]:
    yield call("arange", 8)
    yield call("arange.start", 2, 8)
    yield call("arange.start_step", 2, 8, 2)
    yield call("tril_indices", 4, 6, -1)
    yield call("triu_indices", 4, 6, 1)
    yield call("eye", 4)
    yield call("eye.m", 4, 6)
    yield call("linspace", 0, 1, 8)
    yield call("scalar_tensor", 3, dtype=torch.float64)
    yield call("full", [4, 6], 2.0, dtype=torch.float64)
    for name in ("empty.memory_format", "ones", "zeros"):
        yield call(name, [4, 6], dtype=torch.float64)
    for name in ("new_empty", "new_ones", "new_zeros"):
        yield call(name, x(4), [4, 6])
    yield call("new_full", x(4), [4, 6], 2.0)
    for kind in ("uniform", "normal", "bits"):
        indices = [torch.arange(4), torch.arange(6)]
        yield call("partita.random", torch.tensor(7), indices, [4, 6], 5, kind)


def along_a_dim() -> Iterator[Sample]:
    for name in ("softmax", "log_softmax"):
        yield call(f"_{name}", x(4, 6, 8), 1, False)
        yield call(f"_{name}_backward_data", x(4, 6), fraction(4, 6), -1, torch.float64)
    yield call("_safe_softmax", x(4, 6, 8), 1)
    yield call("flip", x(4, 6, 2), [0, -1])
    yield call("sort", torch.stack([torch.randperm(6).double() for _ in range(4)]))
    yield call("sort.stable", x(4, 6), stable=True, dim=0)
    yield call("topk", torch.stack([torch.randperm(6).double() for _ in range(4)]), 2)
    for name in ("tril", "triu"):
        yield call(name, x(4, 6, 6), 1)


def reductions() -> Iterator[Sample]:
    yield call("sum", x(4, 6))
    yield call("sum", mask(4, 6))
    yield call("sum.dim_IntList", x(4, 6, 8), [0, 2])
    yield call("sum.dim_IntList", x(4, 6, 8), [-2], True)
    yield call("sum.dim_IntList", x(4, 6), None, dtype=torch.float32)
    yield call("sum.dim_IntList", mask(4, 6), [1])
    for name in ("amax", "amin"):
        yield call(name, x(4, 6, 8), [0, -1])
        yield call(name, x(4, 6), [], True)
    for name in BATCHED_REDUCTIONS.split():
        yield call(name, x(4, 6))
    for name in ("all.dim", "any.dim", "max.dim", "min.dim", "prod.dim_int"):
        yield call(name, positive(4, 6), 1, True)
    for name in ("all.dims", "any.dims"):
        yield call(name, x(4, 6) > 0, [])
        yield call(name, x(4, 6, 2), [0, 2])
    yield call("argmax", x(4, 6), -1)
    yield call("argmin", x(4, 6), 0, True)
    yield call("linalg_vector_norm", x(4, 6), 2, [1])


def reshapes() -> Iterator[Sample]:
    for old, new in (
        ([8, 12], [2, 4, 3, 2, 2]),
        ([4, 6, 4], [24, 4]),
        ([4, 6, 1, 8], [4, 1, 48]),
        ([12, 4], [16, 3]),
        ([6, 10], [4, 15]),
        ([3, 8], [4, 6]),
        ([8], [8]),
        ([1], []),
        ([], [1, 1]),
        ([5, 4], [20]),
        ([0, 4], [0, 2, 2]),
    ):
        yield call("reshape", x(*old), new)
    yield call("permute", x(4, 6, 8), [2, 0, 1])
    yield call("permute", x(), [])
    yield call("expand", x(4, 1, 6), [2, 4, 8, 6])
    yield call("expand", x(), [4, 6])
    yield call("view_as_complex", x(4, 6, 2))
    yield call("conj_physical", torch.complex(x(4, 6), x(4, 6)))
    yield call("polar", positive(4, 6), x(6))
    yield call("view_as_real", torch.view_as_complex(x(4, 6, 2)))


def indices() -> Iterator[Sample]:
    yield call("gather", x(4, 6), 1, ints(0, 6, 4, 8))
    yield call("gather", x(4, 6), -1, ints(0, 6, 2, 8))
    yield call("gather", x(4, 6, 2), 0, ints(0, 4, 2, 6, 2))
    yield call("scatter.src", x(4, 6), 1, ints(0, 6, 4, 1), x(4, 1))
    yield call("scatter.value", x(4, 6), 1, ints(0, 6, 4, 2), -1.0)
    yield call("scatter.value", x(4, 6), 0, ints(0, 4, 2, 6), 0)
    yield call("scatter_add", x(4, 6), 1, ints(0, 6, 4, 8), x(4, 8))
    yield call("scatter_add", x(4, 6), 1, ints(0, 6, 2, 8), x(4, 8))
    yield call("index.Tensor", x(4, 6), [ints(0, 4, 8)])
    yield call("index.Tensor", x(4, 6, 8), [None, ints(0, 6, 4, 2)])
    yield call("index.Tensor", x(4, 6, 8), [None, ints(0, 6, 4, 1), ints(0, 8, 6)])
    yield call("index.Tensor", x(4, 6, 8), [ints(0, 4, 4), None, ints(0, 8, 4)])
    yield call("index.Tensor", x(4, 6), [mask(4)])
    yield call("index_put", x(4, 6), [ints(0, 4, 8)], x(8, 6), True)
    yield call("index_put", x(4, 6), [ints(0, 4, 8)], x(6), True)
    yield call("index_put", x(4, 6), [None, torch.tensor([3, 1])], x(4, 2))
    yield call("index_put", x(4, 6, 2), [None, torch.tensor([3])], x(4, 1, 2), True)
    yield call("index_put", x(4, 6), [torch.tensor([3, 1])], x())
    bits = mask(4, 6), [ints(0, 4, 8)], mask(8, 6)
    yield call("index_put", *bits, True)
    yield call("scatter_add", x(), 0, ints(0, 1, 1), x(1))
    yield call("gather", x(6), 0, ints(0, 6))
    yield call("index_select", x(4, 6), 1, ints(0, 6, 8))
    yield call("embedding", x(6, 8), ints(0, 6, 4, 2))
    yield call("embedding", x(6, 8), ints(0, 6))
    ids = ints(0, 6, 4, 2)
    yield call("embedding_dense_backward", x(4, 2, 8), ids, 6, 1, False)
    yield call("embedding_dense_backward", x(4, 2, 8), ids, 6, -1, True)


def products() -> Iterator[Sample]:
    yield call("mm", x(4, 6), x(6, 8))
    yield call("bmm", x(2, 4, 6), x(2, 6, 8))
    yield call("mv", x(4, 6), x(6))
    yield call("dot", x(6), x(6))
    for bias in (x(4), x(1), x()):
        yield call("addmv", bias, x(4, 6), x(6))
    for bias in (x(8), x(4, 8), x(1, 8), x(4, 1), x()):
        yield call("addmm", bias, x(4, 6), x(6, 8))
    yield call("addmm", ints(0, 4, 8), ints(0, 4, 4, 6), ints(0, 4, 6, 8))
    yield call("baddbmm", x(2, 1, 8), x(2, 4, 6), x(2, 6, 8), beta=2, alpha=3)
    yield call("baddbmm", x(8), x(2, 4, 6), x(2, 6, 8))


def convolutions() -> Iterator[Sample]:
    for spatial in (1, 2, 3):
        yield from _convolution(x(2, 4, *[5] * spatial), x(6, 4, *[3] * spatial), 1)
    yield from _convolution(x(2, 8, 4, 4), x(8, 2, 3, 3), 4)
    yield from _convolution(x(2, 4, 4, 4), x(4, 1, 3, 3), 4)
    yield from _convolution(x(2, 8, 4, 4), x(8, 2, 3, 3), 4, transposed=True)
    yield from _convolution(x(2, 4, 4), x(4, 6, 2), 1, transposed=True)


def _convolution(
    image: Tensor, weight: Tensor, groups: int, transposed: bool = False
) -> Iterator[Sample]:
    num = image.ndim - 2
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    for bias, ones in ((None, [1]), (x(outputs), [1] * num)):  # one number is of all
        common = (ones, ones, ones, transposed, [0] * num, groups)
        yield call("convolution", image, weight, bias, *common)
        grad = x(*aten.convolution(image, weight, bias, *common).shape)
        shapes = None if bias is None else [outputs]
        wanted = [True, True, bias is not None]
        yield call("convolution_backward", grad, image, weight, shapes, *common, wanted)


def pools() -> Iterator[Sample]:
    image = x(2, 4, 6, 6)
    window = ([3, 3], [2, 2], [1, 1])
    yield call("max_pool2d_with_indices", image, *window)
    yield call("max_pool2d_with_indices", x(4, 6, 6), *window)
    out, found = aten.max_pool2d_with_indices(image, *window)
    grad = x(*out.shape)
    rest = (*window, [1, 1], False, found)
    yield call("max_pool2d_with_indices_backward", grad, image, *rest)
    yield call("avg_pool2d", image, *window)
    yield call("avg_pool2d_backward", grad, image, *window, False, True, None)
    yield call("_adaptive_avg_pool2d", image, [3, 3])
    yield call("_adaptive_avg_pool2d_backward", x(2, 4, 3, 3), image)
    volume, cube = x(2, 4, 4, 4, 4), ([3] * 3, [2] * 3, [1] * 3)
    yield call("max_pool3d_with_indices", volume, *cube)
    out, found = aten.max_pool3d_with_indices(volume, *cube)
    grad, rest = x(*out.shape), (*cube, [1] * 3, False, found)
    yield call("max_pool3d_with_indices_backward", grad, volume, *rest)
    yield call("avg_pool3d", volume, *cube)
    yield call("avg_pool3d_backward", grad, volume, *cube, False, True, None)
    yield call("_adaptive_avg_pool3d", volume, [2, 2, 2])
    yield call("_adaptive_avg_pool3d_backward", grad, volume)
    yield call("adaptive_max_pool2d", image, [3, 3])
    _, found = aten.adaptive_max_pool2d(image, [3, 3])
    yield call("adaptive_max_pool2d_backward", x(2, 4, 3, 3), image, found)
    for name, options in (
        ("nearest", ()),
        ("bilinear", (False,)),
        ("bicubic", (True,)),
    ):
        op, sizes = f"upsample_{name}2d", ([9, 9], [2, 4, 6, 6])
        yield call(op, image, [9, 9], *options)
        yield call(f"{op}.vec", image, None, *options, [2.0, 2.0])
        yield call(f"{op}_backward", x(2, 4, 9, 9), *sizes, *options)
    window = ([2, 3], [1, 1], [1, 0], [2, 1])
    yield call("im2col", x(2, 4, 4, 6), *window)
    yield call("im2col", x(4, 4, 6), *window)
    yield call("col2im", x(2, 24, 10), [4, 6], [2, 2], [1, 1], [0, 0], [2, 1])
    yield call("col2im", x(24, 10), [4, 6], [2, 2], [1, 1], [0, 0], [2, 1])
    yield call("_fft_c2c", torch.complex(x(4, 6, 8), x(4, 6, 8)), [1], 0, True)
    yield call("_fft_c2c", torch.complex(x(4, 6, 8), x(4, 6, 8)), [0, 2], 1, False)
    yield call("_fft_r2c", x(4, 6, 8), [2], 0, True)
    yield call("_fft_c2r", torch.complex(x(4, 6, 5), x(4, 6, 5)), [2], 0, 8)
    yield call("reflection_pad1d", x(2, 4, 6), [1, 2])
    yield call("reflection_pad1d_backward", x(2, 4, 9), x(2, 4, 6), [1, 2])
    yield call("reflection_pad2d", image, [1, 2, 0, 1])
    yield call("reflection_pad2d_backward", x(2, 4, 7, 9), image, [1, 2, 0, 1])


def groups() -> Iterator[Sample]:
    yield call("partita.grouped_multiply", x(8, 4), x(6, 4, 12), mask(8, 6))
    yield call("partita.grouped_outer", x(8, 4), x(8, 12), mask(8, 6))
    one_each = torch.eye(4).bool().repeat_interleave(2, 0)
    yield call("partita.grouped_multiply", x(8, 6), x(4, 6, 6), one_each)
    yield call("partita.grouped_outer", x(8, 6), x(8, 6), one_each)


def paths() -> Iterator[Sample]:
    scores, lengths = fraction(6, 4, 5), torch.tensor([6, 5, 6, 4])
    targets, sizes = ints(1, 5, 4, 3), torch.tensor([3, 2, 1, 2])
    one_behind = ints(1, 5, 8)
    for given in (targets, one_behind):
        rest = (scores, given, lengths, sizes, 0, False)
        yield call("partita.ctc_loss", *rest)
        yield call("partita.ctc_loss_backward", positive(4), *rest)


def histograms() -> Iterator[Sample]:
    counted = (1, ints(0, 6, 4, 8), x(4, 8), "amax")
    yield call("scatter_reduce.two", x(4, 6), *counted)
    yield call("scatter_reduce.two", x(4, 6), *counted, include_self=False)
    yield call("histc", x(4, 6), 6, -3, 3)
    yield call("histc", x(12), 6, -3, 3)
    yield call("histc", x(4, 6), 6)


def samples() -> dict[str, list[Sample]]:
    """Return the samples of every op, by op."""
    found: dict[str, list[Sample]] = {}
    for group in (
        unary,
        elementwise,
        elementwise_backward,
        creation,
        along_a_dim,
        reductions,
        cut_samples.cuts,
        reshapes,
        indices,
        products,
        convolutions,
        *norm_samples.GROUPS,
        pools,
        groups,
        paths,
        histograms,
        *own_samples.GROUPS,
        *lattice_samples.GROUPS,
        *chunk_samples.GROUPS,
    ):
        for sample in group():
            found.setdefault(sample.op, []).append(sample)
    return found
