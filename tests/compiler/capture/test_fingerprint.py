"""A fingerprint tells models apart, not devices, torch versions or input order."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.models import zoo
from torch import nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.constants import print_constants
from partita.compiler.capture.fingerprint import describe_node, fingerprint
from partita.compiler.ir.program import Program, info, op_name


def mlp(width: int = 32, hidden: int = 64) -> Program:
    x, target = torch.zeros(8, width), torch.zeros(8, width)
    return capture(zoo.Perceptron(width, hidden), (x, target), {}).program


def test_equal_models_have_equal_fingerprints() -> None:
    assert fingerprint(mlp()) == fingerprint(mlp())


def test_inputs_may_be_given_in_any_way() -> None:
    x, target = torch.zeros(8, 32), torch.ones(8, 32)
    model = zoo.Perceptron()
    ways = [
        ((x, target), {}),
        ((x,), {"target": target}),
        ((), {"x": x, "target": target}),
        ((), {"target": target, "x": x}),
    ]
    found = {fingerprint(capture(model, *way).program) for way in ways}
    assert len(found) == 1


class Slope(small.Scale):
    slope = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.leaky_relu(x * self.w, self.slope).sum()


class OtherSlope(Slope):
    slope = 0.2


def test_other_models_have_other_fingerprints() -> None:
    batch = (small.batch(),)
    prints = [
        fingerprint(mlp()),
        fingerprint(mlp(hidden=65)),
        fingerprint(mlp(width=31)),
        fingerprint(capture(Slope(), batch, {}).program),
        fingerprint(capture(OtherSlope(), batch, {}).program),
        fingerprint(capture(Slope(), batch, {}, train=False).program),
        fingerprint(capture(Slope().double(), (small.batch().double(),), {}).program),
        fingerprint(capture(Slope(), (small.batch()[:4],), {}).program),
        fingerprint(capture(small.Chain("a"), batch, {}).program),
        fingerprint(capture(small.Chain("b"), batch, {}).program),
    ]
    assert len(set(prints)) == len(prints)


class Positions(small.Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(4, device=x.device, dtype=x.dtype)
        return (x * self.w * positions).sum()


@pytest.mark.parametrize("place", [torch.device("cpu"), torch.device("cuda", 3)])
def test_devices_are_not_printed(place: torch.device) -> None:
    program = capture(Positions(), (small.batch(),), {}).program
    before = fingerprint(program)
    (arange,) = [n for n in program.calls() if "arange" in op_name(n)]
    assert "device" in arange.kwargs
    arange.kwargs = {**arange.kwargs, "device": place, "pin_memory": True}
    assert fingerprint(program) == before
    assert print_constants(arange) == ("0=0", "1=4", "dtype=torch.float32") or (
        print_constants(arange) == ("0=4", "dtype=torch.float32")
    )


def test_descriptions_say_all_but_where_it_runs() -> None:
    program = mlp()
    lines = {info(n).key: describe_node(n) for n in program.calls()}
    assert lines["sum.dim_IntList/0"] == (
        "sum.dim_IntList/0 = aten.sum.dim_IntList(pow.Tensor_Scalar/0#0) 1=[0, 1]: "
        "f32[]"
    )
