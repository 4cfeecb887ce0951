"""Addresses of storages, and of those of tensors that hardly ever move."""

import torch

from partita.runtime.storages import Storages, storages


def test_tensors_in_one_memory_have_one_address() -> None:
    x, y = torch.zeros(4), torch.zeros(2)
    assert storages([x, x[2:], x.view(2, 2), "no tensor", 3]) == {x.data_ptr()}
    assert storages([x[2:], y]) == {x.data_ptr(), y.data_ptr()}


def test_tensors_that_moved_are_found_where_they_are() -> None:
    known, tensors = Storages(), [torch.zeros(4), torch.zeros(2)]
    first = known.of(tensors)
    assert first == storages(tensors)
    assert known.of(tensors) is first  # nothing is looked for
    buffer = torch.zeros(8)
    tensors[1].data = buffer[6:]
    assert known.of(tensors) == {tensors[0].data_ptr(), buffer.data_ptr()}
    assert known.of(tensors[:1]) == {tensors[0].data_ptr()}
