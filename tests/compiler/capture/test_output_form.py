"""What a model returns is named, and given back in its own form."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.output_form import OutputForm, name_outputs
from partita.compiler.errors import CaptureFailed

ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)


@dataclass(frozen=True)
class Scores:
    """Made by a model, with a count that it knows."""

    loss: Tensor
    of_heads: list[Tensor]
    count: int
    cache: Any = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(self.count)


@dataclass
class Node:
    """Knows where it hangs, and more than its fields."""

    value: Tensor
    parent: Any = None
    unset: int = field(init=False)

    def __post_init__(self) -> None:
        self.parent = self
        self.of_rank = 2


@dataclass
class Table(OrderedDict[str, Tensor]):
    """Is made by more than its fields."""

    value: Tensor


def test_outputs_are_named_by_path() -> None:
    named = name_outputs({"y": ONE, "more": [ONE, (ONE, "text")], "cache": object()})
    assert list(named) == ["y", "more.0", "more.1.0"]
    assert list(name_outputs(ONE)) == ["output"]
    inner = Scores(ONE, [ONE], 3)
    assert [*name_outputs((inner, Scores))] == ["0.loss", "0.of_heads.0"]


@pytest.mark.parametrize(
    ("outputs", "name"),
    [({"a.b": ONE, "a": {"b": TWO}}, "a.b"), ({1: ONE, "1": TWO}, "1")],
)
def test_two_of_one_name_are_refused(outputs: Any, name: str) -> None:
    with pytest.raises(CaptureFailed, match=f"outputs are named '{name}'"):
        name_outputs(outputs)


@pytest.mark.parametrize(
    ("returned", "wanted"),
    [
        (Scores(ONE, [TWO], 3, object()), Scores(TWO, [ONE], 3)),
        (
            {"y": ONE, "n": 3, "of": ("text", None)},
            {"y": TWO, "n": 3, "of": ("text", None)},
        ),
        ([Scores(ONE, [], 0), object()], [Scores(TWO, [], 0), None]),
        (ONE, TWO),
    ],
)
def test_what_a_model_returns_is_given_back(returned: Any, wanted: Any) -> None:
    form = OutputForm()
    form.learn(returned)
    made = {name: 3 - tensor for name, tensor in name_outputs(returned).items()}
    assert form.restore(made) == wanted


def test_of_an_object_what_it_has_is_given_back() -> None:
    form = OutputForm()
    form.learn({"node": Node(ONE), "table": Table(ONE)})
    found = form.restore({"node.value": TWO})
    assert vars(found["node"]) == {"value": TWO, "parent": None, "of_rank": 2}
    assert found["table"] is None


class Scored(nn.Module):
    """Returns its loss among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Scores:
        """Return the scores of ``x`` ``[8, 4]``."""
        made = self.layer(x)
        return Scores(made.square().mean(), [made, made + 1], x.shape[0])


def test_a_program_returns_a_dataclass_as_its_model_does() -> None:
    model, x = Scored(), torch.randn(8, 4)
    program = pt.compile(model, pt.plan(model, x, mesh="dp=1"), compilation="eager")
    with torch.no_grad():
        found, wanted = program(x), model(x)
    assert type(found) is Scores
    assert found.count == 8
    torch.testing.assert_close(
        (found.loss, found.of_heads), (wanted.loss, wanted.of_heads)
    )
    assert pt.verify(model, x, plan=pt.plan(model, x, mesh="dp=2")).ok
