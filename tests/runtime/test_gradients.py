"""Gradients on shards: whose memory they are in; norms that cannot be.

What a norm comes to over ranks is tested by test_program.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import nn

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.runtime.gradients import (
    accumulate,
    clip_grad_norm,
    owned,
    shared_storages,
)
from partita.runtime.groups import bind
from partita.runtime.shard_gradient import Part


def test_the_first_gradient_is_taken_and_others_are_added_to_it() -> None:
    parameter, first = nn.Parameter(torch.zeros(2)), torch.tensor([1.0, 2.0])
    accumulate(parameter, first)
    assert parameter.grad is first
    accumulate(parameter, torch.tensor([10.0, 20.0]))
    assert parameter.grad is first
    assert first.tolist() == [11.0, 22.0]


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


@pytest.mark.parametrize("part", [None, Part(True, True, False)])
def test_hooks_of_a_parameter_are_called_as_autograd_calls_them(
    part: Part | None,
) -> None:
    parameter, plain = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    left: list[list[float]] = []
    seen: list[torch.Tensor] = []

    def note(found: torch.Tensor) -> None:
        assert not torch.is_grad_enabled()
        left.append(cast(torch.Tensor, found.grad).tolist())

    for each in (parameter, plain):
        each.register_hook(seen.append)
        each.register_hook(doubled)
        each.register_hook(doubled).remove()
        each.register_post_accumulate_grad_hook(note)
    for _ in range(2):
        accumulate(parameter, torch.tensor([1.0, 2.0]), part)
        (plain * torch.tensor([1.0, 2.0])).sum().backward()
    assert left == 2 * [[2.0, 4.0]] + 2 * [[4.0, 8.0]]
    assert [gradient.tolist() for gradient in seen] == 4 * [[1.0, 2.0]]


def own(
    gradients: Sequence[torch.Tensor], parameter: nn.Parameter, taken: set[int]
) -> list[torch.Tensor]:
    return owned([(gradient, parameter) for gradient in gradients], taken)


def test_a_gradient_with_memory_of_its_own_stays_as_it_is() -> None:
    parameter, gradient, taken = nn.Parameter(torch.zeros(2, 3)), torch.ones(2, 3), {0}
    (found,) = own([gradient], parameter, taken)
    assert found is gradient
    assert taken == {0, gradient.untyped_storage().data_ptr()}


def test_what_a_step_was_fed_becomes_a_gradient_only_as_a_copy() -> None:
    parameter, gradient = nn.Parameter(torch.zeros(2, 3)), torch.ones(2, 3)
    taken = {gradient.untyped_storage().data_ptr()}
    (found,) = own([gradient], parameter, taken)
    assert torch.equal(found, gradient)
    assert found.data_ptr() != gradient.data_ptr()
    assert len(taken) == 2


def rows_of_more() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)[1:3]


def lying_otherwise() -> torch.Tensor:
    return torch.arange(6.0).reshape(3, 2).t()


def one_number() -> torch.Tensor:
    return torch.ones(1, 1).expand(2, 3)


@pytest.mark.parametrize("make", [rows_of_more, lying_otherwise, one_number])
def test_a_gradient_in_memory_of_another_form_is_copied(make: Any) -> None:
    parameter, taken = nn.Parameter(torch.zeros(2, 3)), set[int]()
    gradient = make()
    (found,) = own([gradient], parameter, taken)
    assert torch.equal(found, gradient)
    assert found.stride() == parameter.stride()
    assert found.untyped_storage().nbytes() == 6 * 4
    assert taken == {found.untyped_storage().data_ptr()}


def test_one_tensor_becomes_two_gradients_only_as_a_copy() -> None:
    parameter, gradient, taken = nn.Parameter(torch.zeros(3)), torch.ones(3), set[int]()
    first, second = own([gradient, gradient], parameter, taken)
    assert first is gradient
    assert second.data_ptr() != first.data_ptr()
    assert len(taken) == 2


def test_gradients_that_fill_a_storage_share_it() -> None:
    buffer, parameter = torch.arange(6.0), nn.Parameter(torch.zeros(3))
    parts, taken = [buffer[:3], buffer[3:]], set[int]()
    found = own([parts[0], parts[1], parts[0]], parameter, taken)
    assert [a is b for a, b in zip(found, parts, strict=False)] == [True, True]
    assert found[2].data_ptr() != parts[0].data_ptr()
    assert taken > {buffer.data_ptr()}


def test_gradients_beside_little_else_share_a_storage() -> None:
    buffer, parameter = torch.arange(100.0), nn.Parameter(torch.zeros(46))
    parts, taken = [buffer[:46], buffer[46:92]], set[int]()
    found = own(parts, parameter, taken)
    assert all(a is b for a, b in zip(found, parts, strict=True))


@pytest.mark.parametrize("whole_first", [True, False])
def test_parts_of_what_is_a_gradient_as_a_whole_share_nothing_with_it(
    whole_first: bool,
) -> None:
    buffer, taken = torch.arange(6.0), set[int]()
    like = {6: nn.Parameter(torch.zeros(6)), 3: nn.Parameter(torch.zeros(3))}
    made = [buffer[:3], buffer[3:]]
    made.insert(0 if whole_first else 2, buffer)
    found = owned([(gradient, like[gradient.numel()]) for gradient in made], taken)
    assert all(torch.equal(a, b) for a, b in zip(found, made, strict=True))
    (whole,) = (gradient for gradient in found if gradient.numel() == 6)
    at = {x.untyped_storage().data_ptr() for x in found if x is not whole}
    assert whole.untyped_storage().data_ptr() not in at


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 3)],  # of a storage that has more
        [(0, 6)],  # all of it
        [(0, 3), (3, 5)],
        [(0, 4), (2, 4)],  # that add up to its size, and overlap
    ],
)
def test_gradients_that_do_not_fill_a_storage_do_not(
    parts: list[tuple[int, int]],
) -> None:
    buffer = torch.arange(6.0)
    assert shared_storages([buffer[a:b] for a, b in parts], ()) == {}


def test_parts_that_fill_a_storage_are_told_by_its_address() -> None:
    buffer = torch.arange(6.0)
    parts = [buffer[:3], buffer[3:]]
    shared = shared_storages(parts, ())
    assert shared == {buffer.data_ptr(): {part.data_ptr() for part in parts}}


def test_a_storage_that_is_taken_is_not_shared() -> None:
    buffer = torch.arange(6.0)
    parts = [buffer[:3], buffer[3:]]
    assert shared_storages(parts, {buffer.data_ptr()}) == {}


def test_a_norm_below_one_is_refused() -> None:
    with pytest.raises(BadOptions) as caught:
        clip_grad_norm([], bind(Mesh(tp=1), "cpu").device, 1.0, 0.5)
    assert str(caught.value) == "norm_type is 0.5; want 1 or more, or infinity"


def test_without_gradients_the_norm_is_nothing() -> None:
    assert clip_grad_norm([], bind(Mesh(tp=1), "cpu").device, 1.0).item() == 0.0
