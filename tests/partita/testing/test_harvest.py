"""What is kept of the calls that eager code makes, and in which form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from partita.testing.harvest import harvest
from partita.testing.prover import call_of


@dataclass
class OneInput:
    input: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Entry:
    """A database of one op, as torch writes its entries."""

    run: Callable[[Tensor], Any]
    shapes: tuple[tuple[int, ...], ...] = ((4, 6),)
    name: str = "entry"
    supports_autograd: bool = True

    def supported_dtypes(self, device_type: str) -> set[torch.dtype]:
        return {torch.float64}

    def sample_inputs(
        self, device: str, dtype: torch.dtype, requires_grad: bool = False
    ) -> Iterator[OneInput]:
        for shape in self.shapes:
            yield OneInput(torch.randn(shape, dtype=dtype, requires_grad=requires_grad))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args)


def ops_of(run: Callable[[Tensor], Any], *shapes: tuple[int, ...]) -> list[str]:
    return sorted(harvest([Entry(run, shapes or ((4, 6),))]).samples)


def test_calls_of_the_backward_are_kept() -> None:
    assert ops_of(lambda x: torch.tanh(x)) == [
        "aten.tanh.default",
        "aten.tanh_backward.default",
    ]


def test_views_have_the_form_that_capture_gives_them() -> None:
    found = harvest([Entry(lambda x: x.transpose(0, -1).unsqueeze(0).detach())])

    assert set(found.samples) == {"aten.permute.default", "aten.reshape.default"}
    (permute, *_) = found.samples["aten.permute.default"]
    assert list(permute.args[1]) == [1, 0]


def test_equal_calls_are_kept_once_and_other_shapes_apart() -> None:
    found = harvest([Entry(torch.tanh, ((4, 6), (4, 6), (5,)))])

    shapes = [x.args[0].shape for x in found.samples["aten.tanh.default"]]
    assert shapes == [(4, 6), (5,)]


def test_an_integer_and_a_float_are_not_the_same_argument() -> None:
    found = harvest([Entry(lambda x: (torch.sub(x, 1), torch.sub(x, 1.0)))])

    assert len(found.samples["aten.sub.Tensor"]) == 2


def test_tensors_are_as_they_were_before_the_call() -> None:
    def run(x: Tensor) -> Tensor:
        ones = torch.ones_like(x)
        kept = ones.exp()
        ones.zero_()
        return kept

    found = harvest([Entry(run)])

    assert found.samples["aten.exp.default"][0].args[0].eq(1).all()
    assert found.left_out["writes in place; capture has its functional twin"] == 1


def test_what_capture_takes_apart_or_draws_is_left_out_and_counted() -> None:
    found = harvest([Entry(lambda x: (x * torch.rand_like(x)).mean())])

    assert "aten.mean.default" not in found.samples
    assert found.left_out["capture takes it apart"] == 1
    assert found.left_out["draws random numbers; capture rewrites it"] == 1


def test_large_samples_and_failing_ones_are_no_calls() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError("not this one")

    assert ops_of(torch.tanh, (100, 100)) == []
    found = harvest([Entry(fail)])
    assert (found.num_calls, found.failed["entry"]) == (0, 1)


def test_calls_of_an_op_are_bounded() -> None:
    shapes = tuple((size,) for size in range(1, 9))

    found = harvest([Entry(torch.tanh, shapes)], per_op=3)

    assert len(found.samples["aten.tanh.default"]) == 3
    assert str(call_of(found.samples["aten.tanh.default"][2]).operands[0]) == "f64[3]"
