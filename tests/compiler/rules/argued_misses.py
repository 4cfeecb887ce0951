"""Signatures that hold, that the table does not have, and why it is to stay so.

Each is a pattern of signatures of one mesh axis, as they print, with its reason. What
matches no pattern of its op fails ``test_missed.py``: it is worth a row, or a reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Argued:
    """Misses of some ops, named with blanks between, that one reason stands for."""

    ops: str
    pattern: str
    reason: str


ARGUED = (
    Argued(
        "all.default all.dim all.dims any.default any.dim any.dims max.default "
        "min.default prod.default",
        r"S\(\d\) -> B",
        "of booleans all parts often say the same; the true result is P(max) or "
        "P(min) of booleans, which no collective joins",
    ),
    Argued(
        "empty_like.default new_empty.default",
        r"(S\(\d\)|P\(sum\)) -> .*",
        "the operand gives a dtype and a device, of which every shard has the same; "
        "what it holds is nobody's to read, and equal by chance",
    ),
    Argued(
        "convolution_backward.default native_layer_norm_backward.default "
        "_fused_rms_norm_backward.default native_batch_norm_backward.default "
        "grid_sampler_2d_backward.default grid_sampler_3d_backward.default",
        r"(B|P\(sum\)|, )+ -> P\(sum\)(, (B|None|P\(sum\)))+",
        "linear in a weight or an input for some results alone, and a row says it "
        "of all; weights and what norms and convolutions see are never partial",
    ),
    Argued(
        "native_layer_norm.default _fused_rms_norm.default "
        "_native_batch_norm_legit_functional.default "
        "_native_batch_norm_legit_no_training.default "
        "_native_batch_norm_legit.no_stats",
        r"(B|P\(sum\)|, )+ -> P\(sum\)(, (B|P\(sum\)))+",
        "linear in weight and bias together, which are never partial",
    ),
    Argued(
        "convolution_backward.default grid_sampler_2d_backward.default "
        "grid_sampler_3d_backward.default",
        r"(B|P\(sum\)|, )+ -> (B|None), P\(sum\)(, (B|None))*",
        "the weight's gradient is linear in the input, its own gradient is not: "
        "see above",
    ),
    Argued(
        "partita.batch_norm_products.default",
        r"B(, (B|P\(sum\)))+ -> P\(sum\), B",
        "the products alone are linear in what the norm knows of the image, and a row "
        "says it of both results",
    ),
    Argued(
        "native_batch_norm_backward.default",
        r".*S\(0\), S\(0\), B, B -> .*",
        "running statistics are handed on and not read in training",
    ),
    Argued(
        "_adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default "
        "_adaptive_avg_pool3d.default _adaptive_avg_pool3d_backward.default "
        "upsample_nearest2d.vec",
        r"S\((\d)\)(, S\(\1\))? -> S\(\1\)",
        "holds where windows tile the image and chunks are whole windows; the sizes "
        "of the result are stated for space alone",
    ),
    Argued(
        "adaptive_max_pool2d_backward.default "
        "max_pool2d_with_indices_backward.default "
        "max_pool3d_with_indices_backward.default",
        r"S\((\d)\), B, S\(\1\) -> P\(sum\)",
        "windows scatter into the whole image each by itself; kernels on other "
        "devices refuse fewer windows than the image has",
    ),
    Argued(
        "hardshrink.default softshrink.default nan_to_num.default nansum.default "
        "pow.Tensor_Scalar add.Scalar amax.default amin.default",
        r"P\(sum\) -> P\(sum\)",
        "an argument (a threshold of zero, an exponent of one, a dim of size one) "
        "or numbers without NaN make it the identity",
    ),
    Argued(
        "hardshrink_backward.default softshrink_backward.default",
        r"(B|P\(sum\)), P\(sum\) -> (B|P\(sum\))",
        "a threshold below all values, so that none of them matters",
    ),
    Argued(
        "index.Tensor",
        r"S\(\d\), B -> S\(\d\)",
        "a mask's result has a shape that depends on data, which capture refuses",
    ),
    Argued(
        "linalg_vector_norm.default",
        r"(S\(\d\) -> (P\((sum|max|min)\)|B)|P\(sum\) -> .*)",
        "orders 0, 1 and inf reduce in ways of their own; a row has one "
        "reduction. Norms of gradients are the square root of a sum in canonical "
        "programs",
    ),
    Argued(
        "partita.attention.default",
        r"B, B, (S\(3\)|P\(sum\))(, B)? -> (S\(3\)|P\(sum\)), B",
        "linear and columnwise in the value, yet every rank would compute all scores",
    ),
    Argued(
        "reflection_pad1d_backward.default reflection_pad2d_backward.default "
        "reflection_pad3d_backward.default replication_pad1d_backward.default "
        "replication_pad2d_backward.default replication_pad3d_backward.default "
        "_adaptive_avg_pool3d_backward.default",
        r"S\(\d\), B -> P\((max|min)\)",
        "the kernel takes shards that do not go together and reads past their end",
    ),
    Argued(
        "partita.attention.default",
        r"(S\(\d\)|B|, )+ -> P\((max|min)\), .*",
        "the kernel takes batches that do not go together and reads past their end",
    ),
    Argued(
        "_cdist_forward.default _cdist_backward.default",
        r"S\((\d)\), S\(\1\) -> P\(sum\)|B, B, B, S\(\d\) -> B",
        "distances of order 1 alone are sums over coordinates",
    ),
    Argued(
        "_linalg_eigh.default _linalg_svd.default",
        r"S\(\d\) -> (.*, )?B(, .*)?",
        "vectors that nobody asked for are empty; without gradients alone nobody does",
    ),
    Argued(
        "igamma.default igammac.default",
        r"P\(sum\), B -> P\(sum\)",
        "zero or one for most of the numbers tried",
    ),
    Argued(
        "scatter_reduce.two",
        r"B, S\((\d)\), S\(\1\) -> P\((max|min)\)",
        "what is scattered joins as the argument says; a row has one reduction",
    ),
    Argued(
        "_embedding_bag_backward.default",
        r".*",
        "offsets, sizes and places are read in some modes alone",
    ),
    Argued(
        "partita.index_put.default",
        r"P\(sum\), B, S\(\d\), B -> P\(sum\)",
        "values that broadcast along split indices are added once per part; a factor "
        "that an operand repeats has no notation",
    ),
    Argued(
        "index_add.default",
        r"B, S\(0\), S\(\d\) -> B",
        "times a factor of zero",
    ),
    Argued(
        "addmv.default",
        r"B, S\(1\), S\(0\) -> B",
        "of integers, times a factor that rounds to zero",
    ),
    Argued(
        "partita.chunk_tails.default partita.widen.default",
        r"S\((\d)\)(, S\(0\))? -> S\([01]\)",
        "of three blocks on two ranks two segments, 1|2, are the same shards as none",
    ),
)


NOT_SEARCHED = {
    "partita.attention_backward.default": "its kernel crashes on every third placement "
    "of its seven operands",
}
"""Ops that are left out, with the reason."""


def is_argued(op: str, signature: str) -> bool:
    """Whether a miss has its reason."""
    name = op.removeprefix("aten.")
    return any(
        name in argued.ops.split() and re.fullmatch(argued.pattern, signature)
        for argued in ARGUED
    )
