"""What capture takes apart adds up to the op again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compiler.capture.small_models import Scale
from torch import Tensor
from torch.nn import functional as nn_functional

from partita.compiler.capture.capture import capture
from partita.compiler.capture.decompositions import OWN
from partita.compiler.ir.program import op_name

aten = torch.ops.aten
X = torch.randn(
    3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)
WEIGHTS = (X[0, :, 0].contiguous(), X[1, :, 1].contiguous())
SIZES = X[:, :1, :1].exp()
NORMED = (SIZES, aten._weight_norm_interface.default(X, SIZES, 0)[1])

GROUPS = (3, 4, 5, 2)
OF_GROUPS = aten.native_group_norm.default(X, *WEIGHTS, *GROUPS, 0.1)[1:]
OF_HALF = [statistic.float() for statistic in OF_GROUPS]
EVERY = [True, True, True]
TRIPLE = X[0], X.mT, X[1, :, :4]
HALF, WIDE = X.bfloat16(), [weight.float() for weight in WEIGHTS]
FAR = 8 + 4 * WIDE[1]

SLOPES, BOUNDS = torch.where(X > 0, 1.0, 0.2), (0.1, 0.3)

COMPLEX = torch.complex(X, X.flip(1).exp())

MATRIX = X[:2, :, :4] + torch.eye(4)

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.mean.default, (X,), {}),
    (aten.mean.default, (X.float(),), {"dtype": torch.float64}),
    (aten.mean.default, (X[0, 0, 0],), {}),
    (aten.mean.dim, (X, [-1]), {}),
    (aten.mean.dim, (X, [0, 2], True), {}),
    (aten.mean.dim, (X, None), {}),
    (aten.mean.dim, (X.float(), [1]), {"dtype": torch.float64}),
    (aten.var.correction, (X,), {}),
    (aten.var.correction, (X, [1]), {"correction": 0}),
    (aten.var.correction, (X, [0, -1]), {"correction": 2, "keepdim": True}),
    (aten.var_mean.correction, (X, [2]), {}),
    (aten.var_mean.correction, (X, [2]), {"keepdim": True, "correction": 0}),
    (aten.std.correction, (X, [1]), {}),
    (aten.var.correction, (COMPLEX, [1]), {}),
    (aten.std.correction, (COMPLEX,), {"keepdim": True}),
    (aten.var_mean.correction, (COMPLEX, [0, -1]), {"correction": 0}),
    (aten.std_mean.correction, (X, [1]), {}),
    (aten.std_mean.correction, (X, [0, 2]), {"correction": 0, "keepdim": True}),
    (aten.soft_margin_loss_backward.default, (X, 3 * X, X.exp(), 1), {}),
    # Where a sigmoid is nearly one, what is left of it has all digits.
    (aten.soft_margin_loss_backward.default, (1e9 * WIDE[0], FAR, FAR.sign(), 2), {}),
    (aten.count_nonzero.default, (X.round(),), {}),
    (aten.count_nonzero.default, (X.round(), 1), {}),
    (aten.count_nonzero.default, (X[0, 0, 0],), {}),
    (aten.count_nonzero.dim_IntList, (X > 0, [0, -1]), {}),
    (aten.aminmax.default, (X,), {}),
    (aten.aminmax.default, (X,), {"dim": -1}),
    (aten.aminmax.default, (X,), {"dim": 1, "keepdim": True}),
    (aten.native_group_norm.default, (X, *WEIGHTS, 3, 4, 5, 2, 0.1), {}),
    (aten.native_group_norm.default, (X, None, None, 3, 4, 5, 4, 0.1), {}),
    (aten._trilinear.default, (*TRIPLE, [1, 3], [0], [1, 2], [2, 3]), {}),
    (aten._weight_norm_interface.default, (X, X[:, :1, :1].exp(), 0), {}),
    (aten._weight_norm_interface.default, (X, X[:1, :1].exp(), 2), {}),
    (aten._weight_norm_interface_backward.default, (2 - X, X, *NORMED, 0), {}),
    (aten.as_strided.default, (X, [12, 1, 5], [5, 7, 1]), {}),
    (aten.as_strided.default, (X.transpose(0, 2), [5, 4, 3], [12, 3, 1]), {}),
    (aten.as_strided.default, (X.transpose(0, 2), [2, 4, 3], [9, 3, 1], 7), {}),
    (aten.as_strided_scatter.default, (X, 2 * X, [3, 4, 5], [20, 5, 1]), {}),
    (
        aten.as_strided_scatter.default,
        (X.transpose(1, 2), X[0], [4, 5], [5, 1], 8),
        {},
    ),
    (aten.repeat.default, (X, [2, 1, 3]), {}),
    (aten.repeat.default, (X.mT, [2, 3, 1, 1, 2]), {}),
    (aten.repeat.default, (X[0, 0, 0], [2, 3]), {}),
    (aten.repeat.default, (X, [2, 0, 1]), {}),
    (aten._linalg_det.default, (MATRIX,), {}),
    (aten._linalg_det.default, (MATRIX[1].mT,), {}),
    (aten._linalg_slogdet.default, (MATRIX,), {}),
    (aten._linalg_slogdet.default, (MATRIX.contiguous().mT,), {}),
    (aten._linalg_slogdet.default, (MATRIX + 1j,), {}),
    (aten.native_group_norm.default, (HALF, None, None, 3, 4, 5, 1, 0.1), {}),
    (aten.native_group_norm.default, (HALF, *WIDE, *GROUPS, 0.1), {}),
    (
        aten.native_group_norm_backward.default,
        (2 - X, X, *OF_GROUPS, WEIGHTS[0], *GROUPS, EVERY),
        {},
    ),
    (
        aten.native_group_norm_backward.default,
        (2 - HALF, HALF, *OF_HALF, WIDE[0], *GROUPS, EVERY),
        {},
    ),
    (aten.mean.dim, (HALF, [0, 2]), {}),
    (aten.mean.dim, (60000 * X[0, :2].half().clamp(0.9, 1), [-1]), {}),
    (aten.var_mean.correction, (100 + HALF, [2]), {}),
    (aten.mean.dim, (X[0, 0, 0], [-1], True), {}),
    (aten.var_mean.correction, (X[0, 0, 0], [0]), {"correction": 0}),
    (aten.rrelu_with_noise_backward.default, (X, X, SLOPES, *BOUNDS, True, False), {}),
    (aten.rrelu_with_noise_backward.default, (X, X, SLOPES, *BOUNDS, False, False), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS)
def test_own_decompositions_equal_the_op(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    found, wanted = OWN[op](*args, **kwargs), op(*args, **kwargs)
    torch.testing.assert_close(found, wanted)


def test_every_own_decomposition_is_tried() -> None:
    assert {op for op, _, _ in CALLS} == set(OWN)


CRITERIA: dict[str, Callable[[Tensor], Tensor]] = {
    "mse_loss": lambda y: nn_functional.mse_loss(y, torch.zeros_like(y)),
    "smooth_l1_loss": lambda y: nn_functional.smooth_l1_loss(y, torch.zeros_like(y)),
    "huber_loss": lambda y: nn_functional.huber_loss(y, torch.zeros_like(y)),
    "nll_loss": lambda y: nn_functional.cross_entropy(y, torch.tensor([1, 0, -100])),
    "binary_cross_entropy": lambda y: nn_functional.binary_cross_entropy(
        y.sigmoid(), torch.full_like(y, 0.5)
    ),
    "with_logits": lambda y: nn_functional.binary_cross_entropy_with_logits(
        y, torch.full_like(y, 0.5)
    ),
    "mean": lambda y: y.mean(),
    "var": lambda y: y.var(),
    "std": lambda y: y.std(0).sum(),
    "std_mean": lambda y: torch.std_mean(y, 1)[0].sum() * torch.std_mean(y, 0)[1].sum(),
    "count_nonzero": lambda y: (y * y.relu().count_nonzero(1).view(3, 1)).sum(),
    "aminmax": lambda y: y.aminmax(dim=1)[0].sum() * y.aminmax()[1],
    "logsumexp": lambda y: y.logsumexp(-1).sum(),
    "stack": lambda y: torch.stack([y, 2 * y]).square().sum(),
    "unbind": lambda y: (y.unbind(0)[1] ** 2).sum(),
    "norm": lambda y: nn_functional.pairwise_distance(y, 2 * y.flip(1)).sum(),
    "renorm": lambda y: torch.renorm(y, 2, 0, 1.0).pow(3).sum(),
    "_euclidean_dist": lambda y: torch.cdist(
        y, y + 1, compute_mode="use_mm_for_euclid_dist"
    ).sum(),
    "affine_grid_generator": lambda y: (
        nn_functional.affine_grid(y.view(-1, 2, 3), [2, 1, 4, 5], False).pow(3).sum()
    ),
    "channel_shuffle": lambda y: (
        nn_functional.channel_shuffle(y.view(1, 4, 3, 1), 2) * y.view(1, 4, 3, 1)
    ).sum(),
    "diag_embed": lambda y: torch.diag_embed(y).pow(3).sum(),
    "_trilinear": lambda y: nn_functional.bilinear(y, y, torch.ones(2, 4, 4)).sum(),
    "glu": lambda y: nn_functional.glu(y).square().sum(),
    "group_norm": lambda y: nn_functional.group_norm(y, 2).pow(3).sum(),
    "roll": lambda y: (y.roll(1, 0) * y).sum(),
    "repeat": lambda y: y.T.repeat(3, 1, 1).view(12, 3).repeat(1, 2).exp().sum(),
    "rsub": lambda y: (1 - y).square().sum(),
}


class Scored(Scale):
    def __init__(self, criterion: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, x: Tensor) -> Tensor:
        return self.criterion(x * self.w)


@pytest.mark.parametrize("name", CRITERIA)
def test_losses_fall_into_parts_with_the_same_value(name: str) -> None:
    model, x = Scored(CRITERIA[name]), X[0, :3, :4].float()
    program = capture(model, (x,), {}).program
    assert not any(f"aten.{name}" in op_name(node) for node in program.calls())
    feeds = {"w": model.w, "x": x, "loss_scale": torch.ones(())}
    values = [feeds.get(r.name, program.constants.get(r.name)) for r in program.inputs]
    with torch.no_grad():
        loss, gradient = program.graph_module(*values)
    wanted = model(x)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach())
    torch.testing.assert_close(gradient, model.w.grad)


@pytest.mark.parametrize("function", [torch.linalg.det, torch.logdet])
def test_the_matrix_of_a_determinant_may_lie_otherwise_where_it_is_run(
    function: Callable[[Tensor], Tensor],
) -> None:
    matrix = (MATRIX[1] + 3 * torch.eye(4)).float()
    model = Scored(lambda y: function(y))
    program = capture(model, (matrix,), {}).program
    feeds = {"w": model.w, "x": matrix.mT.contiguous().mT, "loss_scale": torch.ones(())}
    values = [feeds.get(r.name, program.constants.get(r.name)) for r in program.inputs]
    with torch.no_grad():
        loss, gradient = program.graph_module(*values)
    wanted = model(matrix)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach())
    torch.testing.assert_close(gradient, model.w.grad)
