"""The attention op equals torch's, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from partita.compiler.capture.attention import (
    attention,
    attention_backward,
    one_attention,
)
from partita.compiler.ir.mesh import Mesh
from partita.planning import Options, plan
from partita.verifying.verification import verify


@dataclass(frozen=True)
class Case:
    """Heads of the keys, sizes of query and key, of value, what is masked."""

    heads: int = 4
    length: int = 5
    value: int = 8
    mask: str = ""
    is_causal: bool = False
    scale: float = 0.25

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = [(2, 4, 7, 8), (2, self.heads, self.length, 8)]
        shapes.append((*shapes[1][:3], self.value))
        q, k, v = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for shape in shapes
        )
        return q, k, v

    def make_mask(self, dtype: torch.dtype) -> Tensor | None:
        generator = torch.Generator().manual_seed(1)
        shape = {"whole": (2, 4), "heads": (2, 1)}.get(self.mask.partition(" ")[0])
        if shape is None:
            return None
        scores = torch.randn(*shape, 7, self.length, generator=generator)
        if self.mask.endswith("bool"):
            scores[..., 0] = 1.0  # every query attends to something
            return scores > 0
        return scores.to(dtype)


CASES = [
    Case(),
    Case(scale=1.0),
    Case(length=7, is_causal=True),
    Case(length=9, is_causal=True),
    Case(mask="whole bool"),
    Case(mask="heads bool"),
    Case(mask="heads float"),
    Case(heads=2),
    Case(heads=1, length=7, is_causal=True),
    Case(heads=2, mask="heads bool"),
    Case(value=6),
    Case(heads=2, value=3, mask="whole float"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_torchs(case: Case) -> None:
    dtype = torch.float64
    inputs = [x.requires_grad_() for x in case.tensors(dtype)]
    q, k, v = inputs
    mask = case.make_mask(dtype)
    out, lse = attention(q, k, v, mask, case.is_causal, case.scale)
    wanted = scaled_dot_product_attention(
        q, k, v, mask, is_causal=case.is_causal, scale=case.scale, enable_gqa=True
    )
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    assert lse.shape == q.shape[:-1]
    weights = torch.randn(wanted.shape, dtype=dtype)
    found = torch.autograd.grad(out, inputs, weights)
    theirs = torch.autograd.grad(wanted, inputs, weights)
    for gradient, want in zip(found, theirs, strict=True):
        torch.testing.assert_close(gradient, want, rtol=1e-11, atol=1e-12)


def turned(tensor: Tensor | None) -> Tensor | None:
    """Return what equals ``tensor``, whose rows are not in one piece."""
    return tensor if tensor is None else tensor.mT.contiguous().mT


@pytest.mark.parametrize("number", range(5))
def test_operands_may_lie_in_any_order(number: int) -> None:
    """As those do that are cut out of an image's channels."""
    case = CASES[6]
    inputs = (*case.tensors(torch.float64), case.make_mask(torch.float64))
    out, lse = attention(*inputs, False, 0.25)
    grads = attention_backward(out, *inputs, out, lse, False, 0.25)
    args = [turned(x) if number == n else x for n, x in enumerate(inputs)]
    found = attention(*args, False, 0.25)
    grad = turned(out) if number == 4 else out
    gradients = attention_backward(grad, *args, *found, False, 0.25)
    for mine, want in zip((*found, *gradients), (out, lse, *grads), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", [CASES[0], CASES[7]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(case: Case, dtype: torch.dtype) -> None:
    q, k, v = case.tensors(dtype)
    out, _ = attention(q, k, v, None, False, 0.25)
    wanted = scaled_dot_product_attention(q, k, v, scale=0.25, enable_gqa=True)
    assert out.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 0.02  # bf16 scores: 8 bits
    torch.testing.assert_close(out, wanted, rtol=0.0, atol=tolerance)


def test_rows_that_attend_to_nothing_are_zero() -> None:
    q, k, v = Case(heads=2, value=6).tensors(torch.float64)
    mask = torch.zeros(1, 1, 7, 5, dtype=torch.bool)
    out, _ = attention(q, k, v, mask, False, 0.25)
    assert out.abs().max() == 0.0


@pytest.mark.parametrize("case", [CASES[0], CASES[7], CASES[10]], ids=str)
def test_types_are_known_without_running(case: Case) -> None:
    inputs = case.tensors(torch.float32)
    real = attention(*inputs, None, False, 0.25)
    meta = attention(*(x.to("meta") for x in inputs), None, False, 0.25)
    grads = attention_backward(real[0], *inputs, None, *real, False, 0.25)
    abstract = attention_backward(
        meta[0], *(x.to("meta") for x in inputs), None, *meta, False, 0.25
    )
    for found, want in zip((*meta, *abstract), (*real, *grads), strict=True):
        assert found.shape == want.shape
        assert found.dtype == want.dtype
        assert found.stride() == want.stride()


def test_ops_are_written_by_the_book() -> None:
    q, k, v = Case(heads=2).tensors(torch.float64)
    out, lse = attention(q, k, v, None, True, 0.25)
    utils = ("test_schema", "test_faketensor")
    ops = torch.ops.partita
    for op, args in (
        (ops.attention.default, (q, k, v, None, True, 0.25)),
        (
            ops.attention_backward.default,
            (out, q, k, v, None, out, lse, True, 0.25),
        ),
    ):
        found = torch.library.opcheck(op, args, test_utils=utils)
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("shape", [(7, 5), (2, 7, 5), (2, 1, 1), (3, 1, 7, 5)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_any_dims_is_broadcast(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, n, 4, requires_grad=True) for n in (7, 5, 5))
    mask = torch.randn(shape) > 0
    mask = mask if dtype == torch.bool else mask.to(dtype)
    if dtype == torch.bool:
        mask[..., 0] = True
    wanted = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with one_attention():
        found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(found, wanted, atol=1e-5)
    for own, other in zip(
        torch.autograd.grad(found.sin().sum(), (q, k, v)),
        torch.autograd.grad(wanted.sin().sum(), (q, k, v)),
        strict=True,
    ):
        assert torch.allclose(own, other, atol=1e-5)


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((1, 2), (3, 2), (3, 2)),
        ((3, 2), (1, 2), (1, 2)),
        ((3, 1), (3, 2), (1, 2)),
        ((3, 2), (3, 1), (3, 2)),
        ((1, 1), (1, 2), (3, 1)),
    ],
)
def test_samples_and_heads_are_broadcast(
    query: tuple[int, int], key: tuple[int, int], value: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(*dims, size, 4, requires_grad=True)
        for dims, size in ((query, 7), (key, 5), (value, 5))
    )
    wanted = scaled_dot_product_attention(q, k, v)
    with one_attention():
        found = nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found.sin().sum(), (q, k, v)),
        torch.autograd.grad(wanted.sin().sum(), (q, k, v)),
    )


class Latent(nn.Module):
    """Attends from rows of its own, or to them."""

    def __init__(self, is_query: bool) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(1, 2, 3, 4))
        self.inner = nn.Linear(4, 4)
        self.is_query = is_query

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        query, rows = (self.rows, h) if self.is_query else (h, self.rows)
        return scaled_dot_product_attention(query, rows, rows).square().sum()


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("is_query", [True, False])
def test_rows_of_the_model_serve_every_sample(
    is_query: bool, precision: str | None
) -> None:
    torch.manual_seed(0)
    model, x = Latent(is_query), torch.randn(4, 2, 5, 4)
    found = plan(model, x, mesh=Mesh(tp=2), options=Options(precision=precision))
    report = verify(model, x, plan=found)
    assert report.ok, str(report)
