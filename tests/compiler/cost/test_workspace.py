"""The rows of the table against real kernels, under torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.compiler.cost.kernels import measured_and_predicted, type_in_kernel
from torch import Tensor

from partita.compiler.capture import ctc as ctc  # defines the ops
from partita.compiler.cost.local_call import LocalCall
from partita.compiler.cost.workspace import workspace_bytes
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType

CPU = torch.device("cpu")
ops = torch.ops


def _heads(b: int, h: int, s: int, d: int, in_order: bool) -> Tensor:
    if in_order:
        return torch.randn(b, h, s, d)
    return torch.randn(b, s, h, d).transpose(1, 2)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("key_heads", [8, 2])
def test_attention(key_heads: int, has_mask: bool, in_order: bool) -> None:
    b, h, s, d = 2, 8, 256, 32
    query = _heads(b, h, s, d, in_order)
    key, value = (_heads(b, key_heads, s, d, in_order) for _ in range(2))
    mask = torch.ones(b, 1, s, s, dtype=torch.bool) if has_mask else None
    given = [query, key, value, *([] if mask is None else [mask])]

    def forward() -> tuple[Tensor, Tensor]:
        return ops.partita.attention.default(query, key, value, mask, False, 0.1)

    out, lse = forward()
    grad = torch.randn_like(out)

    def backward() -> tuple[Tensor, ...]:
        return ops.partita.attention_backward.default(
            grad, query, key, value, mask, out, lse, False, 0.1
        )

    total = sum(x.numel() * 4 for x in (out, lse))
    found, want = measured_and_predicted("partita.attention.default", forward, given)
    # The kernel's own blocks (a fixed size per thread) are left out.
    assert abs(found - want) <= 0.05 * (found + total) + 300_000 * (key_heads == 8)
    found, want = measured_and_predicted(
        "partita.attention_backward.default", backward, [grad, *given, out, lse]
    )
    assert found == pytest.approx(want, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((64, 96), (64, 96)),
        ((300, 1024), (600, 1024)),
        ((300, 1024), (300, 1025)),
        ((300, 1023), (300, 1023)),
        ((7,), (7,)),
    ],
)
@pytest.mark.parametrize("kind", ["uniform", "normal", "bits"])
def test_random_numbers(
    kind: str, shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    indices = [torch.arange(size) for size in shape]
    seed = torch.zeros((), dtype=torch.int64)

    def draw() -> Tensor:
        return ops.partita.random.default(seed, indices, list(sizes), 5, kind)

    op, constants = "partita.random.default", (f"2={list(sizes)}", "3=5", f"4={kind}")
    found, want = measured_and_predicted(op, draw, [seed, *indices], *constants)
    assert found == pytest.approx(want, rel=0.02, abs=100)


@pytest.mark.parametrize("flat", [False, True])
def test_ctc_loss(flat: bool) -> None:
    steps, batch, size = 200, 6, 40
    scores = torch.randn(steps, batch, 20).log_softmax(-1)
    targets = torch.randint(1, 20, (batch, size))
    lengths = [torch.full((batch,), length) for length in (steps, size)]
    given = [scores, targets.flatten() if flat else targets, *lengths]
    loss, backward = ops.partita.ctc_loss.default, ops.partita.ctc_loss_backward.default
    grad = torch.ones(batch)
    found, want = measured_and_predicted(
        "partita.ctc_loss.default", lambda: loss(*given, 0, False), given
    )
    assert found == pytest.approx(want, rel=0.02)
    found, want = measured_and_predicted(
        "partita.ctc_loss_backward.default",
        lambda: backward(grad, *given, 0, False),
        [grad, *given],
    )
    assert found == pytest.approx(want, rel=0.02)


def test_sums_of_booleans() -> None:
    x = torch.ones(64, 64, dtype=torch.bool)
    found, want = measured_and_predicted(
        "aten.sum.default", lambda: ops.aten.sum.default(x), [x]
    )
    assert found == want == 64 * 64 * 8
    y = x.float()
    found, want = measured_and_predicted(
        "aten.sum.default", lambda: ops.aten.sum.default(y), [y]
    )
    assert found == want == 0


def _of_convolutions(
    batch: int,
    size: int,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    transposed: bool = False,
    image_as: Callable[[Tensor], Tensor] = Tensor.contiguous,
    grad_as: Callable[[Tensor], Tensor] = Tensor.contiguous,
) -> Iterator[tuple[int, int]]:
    """Yield what is measured and predicted of a convolution, then of its backward."""
    image = image_as(torch.randn(batch, inputs, size, size))
    ends = (inputs, outputs) if transposed else (outputs, inputs)
    weight = torch.randn(*ends, kernel, kernel)
    padding = [(kernel - 1) // 2] * 2
    rest = ([stride] * 2, padding, [1, 1], transposed, [0, 0], 1)

    def forward() -> Tensor:
        return ops.aten.convolution.default(image, weight, None, *rest)

    grad = grad_as(torch.randn_like(forward()))

    def backward() -> tuple[Tensor, ...]:
        return ops.aten.convolution_backward.default(
            grad, image, weight, None, *rest, [True, True, False]
        )

    for op, call, given in (
        ("aten.convolution.default", forward, [image, weight]),
        ("aten.convolution_backward.default", backward, [grad, image, weight]),
    ):
        yield measured_and_predicted(op, call, given)


@pytest.mark.parametrize(
    ("batch", "size", "inputs", "outputs", "kernel"),
    [(8, 32, 16, 32, 3), (16, 16, 64, 128, 1), (8, 16, 32, 32, 3)],
)
def test_convolutions(
    batch: int, size: int, inputs: int, outputs: int, kernel: int
) -> None:
    for found, want in _of_convolutions(batch, size, inputs, outputs, kernel):
        assert found == pytest.approx(want, rel=0.1)


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(12, 12), (16, 28), (3, 12), (1, 12), (1, 16)]
)
def test_convolutions_fill_up_blocks_of_channels(inputs: int, outputs: int) -> None:
    for found, want in _of_convolutions(32, 32, inputs, outputs, 3):
        assert found == pytest.approx(want, rel=0.02)


def test_convolutions_read_a_single_channel_as_it_is() -> None:
    found, want = next(_of_convolutions(32, 32, 1, 16, 3, 2))
    assert found == pytest.approx(want, rel=0.02)


def _half_of_channels(image: Tensor) -> Tensor:
    return torch.cat([image, image], 1)[:, image.shape[1] :]


@pytest.mark.parametrize("image_as", [Tensor.contiguous, _half_of_channels])
@pytest.mark.parametrize("grad_as", [Tensor.contiguous, _half_of_channels])
def test_convolutions_put_operands_in_order(
    image_as: Callable[[Tensor], Tensor], grad_as: Callable[[Tensor], Tensor]
) -> None:
    given = 32, 32, 16, 16, 3, 1, False, image_as, grad_as
    for found, want in _of_convolutions(*given):
        assert found == pytest.approx(want, rel=0.02)


_by_channels = partial(Tensor.contiguous, memory_format=torch.channels_last)


@pytest.mark.parametrize("grad_as", [Tensor.contiguous, _by_channels])
def test_convolutions_by_channels_have_no_blocks(
    grad_as: Callable[[Tensor], Tensor],
) -> None:
    given = 32, 32, 16, 32, 3, 1, False, _by_channels, grad_as
    for found, want in _of_convolutions(*given):
        # Filters in blocks, and what belongs to rows of pixels.
        assert found == pytest.approx(want, abs=100_000)


@pytest.mark.parametrize("transposed", [False, True])
def test_strided_convolutions(transposed: bool) -> None:
    inputs, outputs = (64, 32) if transposed else (32, 64)
    for found, want in _of_convolutions(32, 16, inputs, outputs, 4, 2, transposed):
        assert found == pytest.approx(want, rel=0.05)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_one_thread_has_no_blocks_of_small_batches_and_single_pixels() -> None:
    for found, want in _of_convolutions(8, 16, 64, 128, 1):
        assert found == 0 < want  # what several threads need


def test_batch_norm_backward() -> None:
    x, w = torch.randn(8, 16, 32, 32), torch.ones(16)

    def call() -> tuple[Tensor, ...]:
        return ops.aten.native_batch_norm_backward.default(
            x, x, w, w, w, w, w, True, 1e-5, [True, True, True]
        )

    op = "aten.native_batch_norm_backward.default"
    found, want = measured_and_predicted(op, call, [x, x, w])
    assert found == want


X = torch.randn(256, 192)
NARROW, MASK, WHOLE = X.bfloat16(), X > 0, torch.randint(0, 192, (256, 192))
ACROSS = torch.randn(192, 256).t()  # does not lie in order
ROW, MEAN = torch.randn(192), torch.randn(256, 1)
ROWS = torch.randint(0, 64, (256,))
STATISTICS = MEAN, MEAN, ROW, ROW

CALLS: dict[str, tuple[str, Sequence[Tensor], tuple[Any, ...]]] = {
    "a sum of two dtypes": ("aten.add.Tensor", (X, NARROW), ()),
    "a wider row": ("aten.mul.Tensor", (NARROW, ROW), ()),
    "a mask": ("aten.mul.Tensor", (X, MASK), ()),
    "three dtypes": ("aten.addcmul.default", (X, NARROW, NARROW), ()),
    "a comparison": ("aten.gt.Tensor", (X, NARROW), ()),
    "a comparison of masks": ("aten.logical_and.default", (MASK, X), ()),
    "integers": ("aten.sqrt.default", (WHOLE,), ()),
    "a single number": ("aten.mul.Tensor", (NARROW, torch.tensor(2.0)), ()),
    "a choice": ("aten.where.self", (MASK, X, NARROW), ()),
    "a choice of one dtype": ("aten.where.self", (MASK, X, X), ()),
    "what is filled": ("aten.masked_fill.Scalar", (X, MASK), (1.0,)),
    "a wider sum": ("aten.sum.dim_IntList", (NARROW,), ([0], False)),
    "a narrow mean": ("aten.mean.dim", (NARROW,), ([-1],)),
    "dropout": ("aten.native_dropout_backward.default", (X, MASK), (1.5,)),
    "softmax": ("aten._softmax.default", (ACROSS,), (-1, False)),
    "log softmax, backward": (
        "aten._log_softmax_backward_data.default",
        (ACROSS, X),
        (-1, torch.float32),
    ),
    "masked softmax": ("aten._safe_softmax.default", (X,), (-1,)),
    "a table": (
        "aten.embedding_dense_backward.default",
        (ACROSS, ROWS),
        (64, -1, False),
    ),
    "a gelu": ("aten.gelu_backward.default", (ACROSS, X), ()),
    "a gelu in order": ("aten.gelu_backward.default", (X, X), ()),
    "a narrow gelu": ("aten.gelu_backward.default", (NARROW, NARROW), ()),
    "magnitudes": ("aten.abs.default", (torch.complex(X, X),), ()),
    "angles": ("aten.angle.default", (torch.complex(X, X),), ()),
    "angles of numbers": ("aten.angle.default", (X,), ()),
    "a log of a sigmoid": ("aten.log_sigmoid_forward.default", (ACROSS,), ()),
    "numbers at places": ("aten.gather.default", (NARROW, WHOLE), ()),
}


@pytest.mark.parametrize("what", CALLS)
def test_what_is_cast_or_put_in_order(what: str) -> None:
    name, tensors, rest = CALLS[what]
    _, packet, overload = name.split(".")
    op = getattr(getattr(ops.aten, packet), overload)
    if packet == "gather":
        call = partial(op, tensors[0], -1, tensors[1])
    elif packet == "sum":
        call = partial(op, *tensors, *rest, dtype=torch.float32)
    else:
        call = partial(op, *tensors, *rest)
    found, want = measured_and_predicted(name, call, tensors)
    # What a transposed copy takes has a fixed size, what belongs to rows a small one.
    assert found == pytest.approx(want, abs=20_000)


@pytest.mark.parametrize(
    ("shape", "dims", "copies"),
    [((256, 192), [1], 0), ((256, 192), [0, 1], 1), ((16, 16, 192), [1, 2], 2)],
)
def test_real_numbers_of_frequencies_of_several_dims(
    shape: tuple[int, ...], dims: list[int], copies: int
) -> None:
    given = torch.randn(*shape, dtype=torch.complex64)
    name, rest = "aten._fft_c2r.default", (dims, 0, 2 * (shape[-1] - 1))
    call = partial(ops.aten._fft_c2r.default, given, *rest)
    constants = (f"{i}={x}" for i, x in enumerate(rest, 1))
    found, want = measured_and_predicted(name, call, [given], *constants)
    assert found == pytest.approx(want, abs=20_000)
    assert want == copies * given.numel() * 8


def test_a_layer_norm_puts_its_operands_in_order() -> None:
    def forward() -> tuple[Tensor, ...]:
        return ops.aten.native_layer_norm.default(ACROSS, [192], ROW, ROW, 1e-5)

    def backward() -> tuple[Tensor, ...]:
        return ops.aten.native_layer_norm_backward.default(
            ACROSS, ACROSS, [192], *STATISTICS, [True, True, True]
        )

    name, given = "aten.native_layer_norm.default", [ACROSS, ROW, ROW]
    found, want = measured_and_predicted(name, forward, given)
    assert found == pytest.approx(want, abs=20_000)
    assert want == ACROSS.numel() * 4
    name, given = "aten.native_layer_norm_backward.default", [ACROSS, ACROSS]
    found, want = measured_and_predicted(name, backward, [*given, *STATISTICS])
    assert found == pytest.approx(want, abs=20_000)
    assert want == 2 * ACROSS.numel() * 4


def test_grouped_products_of_groups_that_are_alike() -> None:
    member = torch.arange(256).view(-1, 1) % 4 == torch.arange(4)
    weight, grad = torch.randn(4, 192, 128), torch.randn(256, 128)
    for name, given in (
        ("multiply", [X, weight, member]),
        ("outer", [X, grad, member]),
    ):
        op = getattr(ops.partita, f"grouped_{name}").default
        key = f"partita.grouped_{name}.default"
        found, want = measured_and_predicted(key, partial(op, *given), given)
        assert found == pytest.approx(want, rel=0.05)


def test_grouped_products_of_a_rank_that_has_some_groups() -> None:
    member = torch.arange(256).view(-1, 1) % 8 == torch.arange(4)  # the first four of 8
    given = [X, torch.randn(4, 192, 128), member]
    key = "partita.grouped_multiply.default"
    op = ops.partita.grouped_multiply.default
    found, whole = measured_and_predicted(key, partial(op, *given), given)
    placements = [
        Placement.parse(p) for p in ("(B, S(0))", "(S(0), B)", "(S(1), S(0))")
    ]
    call = LocalCall(
        key,
        [(type_in_kernel(x), x.stride()) for x in given],
        [type_in_kernel(op(*given))],
        "cpu",
        placements=placements,
        sizes=(2, 3),
    )
    assert found == pytest.approx(workspace_bytes(call), rel=0.05)
    assert whole > 1.5 * found


def test_a_gpu_casts_while_it_reads() -> None:
    types = [type_in_kernel(x) for x in (X, NARROW)]
    seen = [(type_in_kernel(x), x.stride()) for x in (X, NARROW)]
    call = LocalCall("aten.add.Tensor", seen, types[:1], "cuda")
    assert workspace_bytes(call) == 0 < workspace_bytes(replace(call, device="cpu"))


def test_other_ops_need_none() -> None:
    x = torch.randn(64, 64)
    found, want = measured_and_predicted(
        "aten.mm.default", lambda: ops.aten.mm.default(x, x.t()), [x, x]
    )
    assert found == want == 0


def test_a_gpu_has_the_rows_of_grouped_products_in_order() -> None:
    half = torch.bfloat16
    types = [TensorType((256, 192), half), TensorType((4, 192, 128), half)]
    member = TensorType((256, 4), torch.bool)
    seen = [(type_, torch.empty(type_.shape).stride()) for type_ in (*types, member)]
    made = [TensorType((256, 128), half)]
    call = LocalCall("partita.grouped_multiply.default", seen, made, "cuda")

    assert workspace_bytes(call) == 2 * 256 * (192 + 128)
