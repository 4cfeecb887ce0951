"""A parameter is brought into the step when it changed, and only then."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, InputRole, OutputKind, OutputRole
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.brought import Brought, held_placements
from partita.runtime.groups import bind

MESH = Mesh(tp=1)
HELD, STORED = Placement.parse("S(0)"), Placement.parse("B")


def twice(held: torch.Tensor) -> torch.Tensor:
    return held * 2


def doubling(
    name: str, doubled: Callable[[torch.Tensor], torch.Tensor] = twice
) -> LocalProgram:
    """Return a program that stands in for a gather: it returns twice its input."""
    graph = fx.Graph()
    graph.output((graph.call_function(doubled, (graph.placeholder("held"),)),))
    type_ = TensorType((3,), torch.float32)
    return LocalProgram(
        fx.GraphModule(nn.Module(), graph),
        (InputRole(InputKind.PARAMETER, name),),
        (OutputRole(OutputKind.OUTPUT, name),),
        (type_,),
        (type_,),
        (HELD,),
        (STORED,),
        MESH,
        (0,),
    )


def brought() -> tuple[Brought, dict[str, nn.Parameter], Callable[[str], torch.Tensor]]:
    made = Brought([doubling("a"), doubling("b")], bind(MESH, "cpu"))
    parameters = {name: nn.Parameter(torch.ones(3)) for name in "ab"}
    state = {(InputKind.PARAMETER, name): p for name, p in parameters.items()}

    def copy(name: str) -> torch.Tensor:
        found = made.feeds(state)[InputKind.PARAMETER, name]
        assert isinstance(found, torch.Tensor)
        return found

    return made, parameters, copy


def test_a_copy_is_kept_while_nothing_changes() -> None:
    _, parameters, copy = brought()
    first = copy("a")
    assert first.tolist() == [2, 2, 2]
    assert not first.requires_grad
    parameters["a"].grad = torch.ones(3)
    parameters["a"].grad += 1
    assert copy("a") is first


def with_optimizer(parameter: nn.Parameter) -> None:
    parameter.grad = torch.ones(3)
    torch.optim.SGD([parameter], lr=1.0).step()


def with_fused_optimizer(parameter: nn.Parameter) -> None:
    parameter.grad = torch.ones(3)
    torch.optim.SGD([parameter], lr=1.0, fused=True).step()


def by_loading(parameter: nn.Parameter) -> None:
    with torch.no_grad():
        parameter.copy_(torch.zeros(3))


def in_another_place(parameter: nn.Parameter) -> None:
    parameter.data = torch.zeros(3)


@pytest.mark.parametrize(
    "change", [with_optimizer, with_fused_optimizer, by_loading, in_another_place]
)
def test_only_what_changed_is_brought_again(
    change: Callable[[nn.Parameter], None],
) -> None:
    _, parameters, copy = brought()
    first, other = copy("a"), copy("b")
    change(parameters["a"])
    assert copy("a").tolist() == [0, 0, 0]
    assert first.tolist() == [2, 2, 2]
    assert copy("b") is other


def test_what_was_released_is_brought_again() -> None:
    made, _, copy = brought()
    first = copy("a")
    made.release()
    assert copy("a") is not first
    assert copy("a").tolist() == [2, 2, 2]


def test_a_released_copy_is_gone() -> None:
    made, _, copy = brought()
    released = weakref.ref(copy("a"))
    made.release()
    assert released() is None


def test_an_old_copy_is_gone_before_the_new_one_is_made() -> None:
    old: list[weakref.ref[torch.Tensor]] = []

    def doubled(held: torch.Tensor) -> torch.Tensor:
        assert all(copy() is None for copy in old)
        return held * 2

    made = Brought([doubling("a", doubled)], bind(MESH, "cpu"))
    parameter = nn.Parameter(torch.ones(3))
    state = {(InputKind.PARAMETER, "a"): parameter}
    for _ in range(2):
        copy = made.feeds(state)[InputKind.PARAMETER, "a"]
        assert isinstance(copy, torch.Tensor)
        old.append(weakref.ref(copy))
        del copy
        by_loading(parameter)


def test_what_is_brought_says_where_it_is_held() -> None:
    assert held_placements([doubling("a")]) == {"a": HELD}
    assert held_placements([]) == {}
