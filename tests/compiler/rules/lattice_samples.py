"""Calls of ops on matrices and images, and of rarer ops, for ``rule_samples.py``."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.compiler.rules.rule_values import call, fraction, ints, mask, positive, x

from partita.testing.prover import Sample

aten = torch.ops.aten

UNARY = """
    angle deg2rad i0 isneginf isposinf rad2deg signbit sinc special_entr special_i0e
    special_i1e special_log_ndtr
"""


def rarer_elementwise() -> Iterator[Sample]:
    for name in UNARY.split():
        yield call(name, x(4, 6))
    yield call("copysign.Scalar", x(4, 6), -1.0)
    yield call("round.decimals", x(4, 6) / 7, decimals=1)
    yield call("polygamma", 1, positive(4, 6))
    yield call("special_ndtri", (fraction(4, 6) + 1) / 2)
    yield call("logit_backward", x(4, 6), (fraction(4, 6) + 1) / 2, 0.25)
    yield call("bucketize.Tensor", x(4, 6), torch.tensor([-1.0, 0.0, 2.0]).double())
    for name in ("igamma", "igammac", "logaddexp", "logaddexp2", "heaviside"):
        yield call(name, positive(4, 6), positive(4, 6))
    yield call("special_xlog1py", x(4, 6), positive(6))
    yield call("complex", x(4, 6), x(4, 6))
    yield call("ldexp.Tensor", x(4, 6), ints(0, 3, 6))


def matrices() -> Iterator[Sample]:
    near, far = x(2, 4, 3), x(2, 6, 3)
    for p in (1.0, 2.0):
        yield call("_cdist_forward", near, far, p, None)
        found = aten._cdist_forward(near, far, p, None)
        yield call("_cdist_backward", x(2, 4, 6), near, far, p, found)
    yield call("diagonal", x(4, 6, 8), 1, 0, -1)
    yield call("diagonal", x(4, 4))
    yield call("diagonal_backward", x(6, 4), [4, 6, 8], 1, 0, -1)
    yield call("diagonal_scatter", x(4, 6, 8), x(6, 4), 1, 0, -1)
    yield call("diagonal_scatter", x(4, 4), x(4))
    yield call("trace", x(4, 6))
    yield call("addbmm", x(8), x(2, 4, 6), x(2, 6, 8))
    yield call("addbmm", x(4, 8), x(2, 4, 6), x(2, 6, 8), beta=2)
    yield call("vdot", x(6), x(6))
    yield call("linalg_cross", x(4, 3), x(4, 3))
    yield call("linalg_cross", x(3, 4), x(3, 4), dim=0)
    wave = torch.complex(x(4, 6, 8), x(4, 6, 8))
    yield call("_fft_r2c", x(4, 6, 8), [0, 2], 0, True)
    yield call("_fft_c2c", wave, [1], 0, True)
    yield call("_fft_c2r", wave, [2], 0, 14)


def solvers() -> Iterator[Sample]:
    # Far from singular, so that what is computed in shards is as exact as whole.
    stack = x(4, 3, 3) + 20 * torch.eye(3)
    definite = stack @ stack.mT
    columns, lower = x(4, 3, 6), stack.tril()
    factors, pivots = torch.linalg.lu_factor(stack)
    yield call("_linalg_check_errors", ints(0, 1, 4).int(), "inv", is_matrix=False)
    for name in ("_linalg_det", "_linalg_slogdet", "linalg_inv_ex", "linalg_qr"):
        yield call(name, stack)
    yield call("linalg_qr", stack, "r")
    yield call("linalg_qr", stack[0], "r")
    yield call("_linalg_eigh", definite)
    yield call("_linalg_eigh", definite, compute_v=False)
    yield call("_linalg_svd", stack)
    yield call("_linalg_svd", stack, compute_uv=False)
    yield call("linalg_matrix_exp", stack / 100)
    yield call("linalg_cholesky_ex", definite)
    yield call("linalg_lu_factor_ex", stack)
    yield call("linalg_lu_solve", factors, pivots, columns)
    yield call("linalg_lu_solve", factors, pivots, columns.mT, left=False)
    yield call("_linalg_solve_ex", stack, columns)
    yield call("_linalg_solve_ex", stack, columns.mT, left=False)
    yield call("_linalg_solve_ex", stack, x(4, 3))
    yield call("_linalg_solve_ex", stack, x(3))
    yield call("_linalg_solve_ex", stack[0], columns)
    yield call("_linalg_solve_ex", stack[:1], columns)
    yield call("_linalg_solve_ex", stack, columns[:1])
    yield call("_linalg_solve_ex", stack, columns[0])
    yield call("linalg_lu_solve", factors[0], pivots[0], columns)
    yield call("linalg_solve_triangular", lower[0], columns, upper=False)
    yield call("linalg_solve_triangular", lower, columns, upper=False)
    yield call("linalg_solve_triangular", lower, columns.mT, upper=False, left=False)
    edges = torch.tensor([-1.0, 0.0, 2.0]).double()
    for rows in (edges, edges.expand(4, 3).contiguous()):
        order = torch.tensor([2, 0, 1]).expand(rows.shape).contiguous()
        shuffled = torch.empty_like(rows).scatter_(-1, order, rows)
        yield call("searchsorted.Tensor", rows, x(4, 6))
        yield call("searchsorted.Tensor", shuffled, x(4, 6), sorter=order)


def rarer_along_a_dim() -> Iterator[Sample]:
    for name in ("median.dim", "mode"):
        yield call(name, x(4, 7), 1, True)
    yield call("kthvalue", torch.stack([torch.randperm(6) for _ in range(4)]), 2, 1)
    yield call("mode", x(4, 7))
    yield call("mode", x())
    yield call("nansum", x(4, 6, 8), [0, 2])
    yield call("unfold", x(4, 8, 6), 1, 3, 2)
    yield call("unfold_backward", x(4, 3, 6, 3), [4, 8, 6], 1, 3, 2)


def rarer_indices() -> Iterator[Sample]:
    yield call("index_add", x(4, 6), 1, ints(0, 6, 8), x(4, 8), alpha=2)
    yield call("index_add", x(), 0, ints(0, 1, 1), x())
    yield call("index_add", mask(4, 6), 1, ints(0, 6, 8), mask(4, 8))
    yield call("masked_scatter", x(4, 6), mask(4, 6), x(24))
    yield call("masked_scatter_backward", x(4, 6), mask(4, 6), [4, 6])
    for place in (torch.tensor(True), torch.tensor([[False]])):
        yield call("masked_scatter", x(4, 6), place, x(4, 6))
        yield call("masked_scatter_backward", x(4, 6), place, [4, 6])
    for how, keep in (("sum", True), ("sum", False), ("amax", True), ("mean", True)):
        at = ints(0, 6, 4, 6)
        args = (x(4, 6), 1, at, x(4, 6), how)
        yield call("scatter_reduce.two", *args, include_self=keep)
    bits = mask(4, 6)
    for chosen, values in ((bits, x()), (bits[:, 0], x(6)), (bits, x(int(bits.sum())))):
        yield call("index_put", x(4, 6), [chosen], values)
        yield call("index_put", x(4, 6), [chosen], values, True)
    yield call("index_put", x(4, 6), [None, bits[0]], x(4, 1))
    table, ids, offsets = x(6, 8), ints(0, 6, 10), torch.tensor([0, 3, 3, 7])
    for mode in range(3):
        args = (table, ids, offsets, False, mode)
        yield call("_embedding_bag", *args)
        _, bags, sizes, places = aten._embedding_bag(*args)
        rest = (ids, offsets, bags, sizes, places, 6, False, mode, False, None)
        yield call("_embedding_bag_backward", x(4, 8), *rest)
    weights = x(10)
    yield call("_embedding_bag", table, ids, offsets, False, 0, False, weights)
    _, *bags = aten._embedding_bag(table, ids, offsets, False, 0, False, weights)
    rest = (ids, offsets, *bags, 6, False, 0, False, weights)
    yield call("_embedding_bag_backward", x(4, 8), *rest)


def images() -> Iterator[Sample]:
    for batch in ((2,), ()):
        window = ([2, 2], [1, 1], [1, 0], [2, 1])
        yield call("im2col", x(*batch, 4, 6, 5), *window)
        columns = aten.im2col(x(*batch, 4, 6, 5), *window)
        yield call("col2im", x(*columns.shape), [6, 5], *window)
    yield call("pixel_shuffle", x(2, 8, 4, 6), 2)
    yield call("pixel_unshuffle", x(2, 4, 8, 12), 2)
    yield call("_native_batch_norm_legit.no_stats", x(1, 4, 6), x(4), x(4), True, *EPS)
    yield call("_native_batch_norm_legit.no_stats", x(2, 4, 6), None, None, True, *EPS)
    for space in ((6, 4), (4, 2, 6)):
        name = f"grid_sampler_{len(space)}d"
        image, grid = x(2, 4, *[5] * len(space)), fraction(2, *space, len(space))
        yield call(name, image, grid, 0, 0, False)
        for wanted in ([True, True], [False, True]):
            args = (x(2, 4, *space), image, grid, 0, 0, False, wanted)
            yield call(f"{name}_backward", *args)


EPS = (0.1, 1e-5)


def padded_and_resized() -> Iterator[Sample]:
    for how, num in (("reflection", 3), *(("replication", n) for n in (1, 2, 3))):
        pads = [1, 2, 0, 1, 1, 1][: 2 * num]
        image = x(2, 4, *[4] * num)
        yield call(f"{how}_pad{num}d", image, pads)
        grad = getattr(aten, f"{how}_pad{num}d")(image, pads)
        yield call(f"{how}_pad{num}d_backward", x(*grad.shape), image, pads)
    for name, num, options in (
        ("_upsample_nearest_exact1d", 1, ()),
        ("_upsample_nearest_exact2d", 2, ()),
        ("upsample_linear1d", 1, (False,)),
        ("upsample_nearest1d", 1, ()),
        ("upsample_nearest3d", 3, ()),
        ("upsample_trilinear3d", 3, (True,)),
    ):
        old, new = [4] * num, [7] * num
        yield call(name, x(2, 4, *old), new, *options)
        yield call(f"{name}_backward", x(2, 4, *new), new, [2, 4, *old], *options)


GROUPS = (
    rarer_elementwise,
    matrices,
    solvers,
    rarer_along_a_dim,
    rarer_indices,
    images,
    padded_and_resized,
)
