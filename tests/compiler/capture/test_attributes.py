from __future__ import annotations

import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor

from partita.compiler.capture.attributes import Attributes, Changes, as_left
from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed


class Part(small.Scale):
    def __init__(self) -> None:
        super().__init__()
        self.count = 1000
        self.table = {"a": 1}
        self.lists = ([1], [2])
        self.gone = "here"
        self.register_buffer("empty", None)


def change(part: Part) -> None:
    part.count += 1
    part.table["b"] = 2
    part.lists[0].append(3)
    del part.gone
    part.added = torch.ones(2, 3)
    part.empty = torch.ones(4)
    part.register_buffer("new", torch.ones(5))
    part.child = torch.nn.Linear(2, 2)


def changed() -> tuple[Part, str, Changes]:
    """Return what was changed and back again, how it is seen, and the changes."""
    part = Part()
    before, table, attributes = seen(part), part.table, Attributes(part)
    change(part)
    changes = attributes.take_back()
    assert seen(part) == before
    assert part.table is table
    return part, before, changes


def seen(part: Part) -> str:
    return repr([(k, x) for k, x in sorted(vars(part).items()) if k != "training"])


def test_what_is_taken_back_is_what_was_changed() -> None:
    _, _, changes = changed()
    names = [change.name for change in changes]
    assert names == "added count table lists gone empty new child".split()
    assert [len(change.tensors) for change in changes] == [1, 0, 0, 0, 0, 1, 1, 0]


def test_attributes_are_as_a_call_left_them_but_for_the_values_of_tensors() -> None:
    part, before, changes = changed()
    table = part.table
    with as_left(part, changes):
        assert (part.count, part.table, part.lists) == (
            1001,
            {"a": 1, "b": 2},
            ([1, 3], [2]),
        )
        assert not hasattr(part, "gone")
        zeros = torch.zeros(2, 3), torch.zeros(4), torch.zeros(5)
        torch.testing.assert_close((part.added, part.empty, part.new), zeros)
        part.count += 1
    assert seen(part) == before
    assert part.table is table


def test_what_is_set_to_what_it_was_is_no_change() -> None:
    part = Part()
    attributes = Attributes(part)
    part.count = int("1000")
    part.table, part.lists = {"a": 1}, ([1], [2])
    assert attributes.take_back() == ()


class Writing(small.Scale):
    """Counts its calls in a tensor that it has in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = [torch.zeros(())]

    def forward(self, x: Tensor) -> Tensor:
        self.counts[0].add_(1.0)
        return (x * self.w).sum() * self.counts[0]


class Around(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Writing()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_writes_to_a_tensor_that_is_no_buffer_are_refused(
    device: str, precision: str | None
) -> None:
    model = Around().to(device)
    with pytest.raises(CaptureFailed, match=r"the tensor 'part\.counts'"):
        capture(model, (torch.ones(8, 4),), {}, precision=precision)
