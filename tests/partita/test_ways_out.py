"""Who conflicts where nothing fits, and what would help: all of it tried."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tests.models import zoo

from partita.compiler.errors import NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.units import parse_bytes
from partita.options import Options
from partita.planning import plan

TP2 = Mesh(tp=2)
WHOLE = {name: "(B,)" for name in ("up.weight", "up.bias", "down.weight", "down.bias")}


def refusal(**options: Any) -> str:
    model, args, _ = zoo.mlp()
    with pytest.raises(NoSolution) as caught:
        plan(model, *args, mesh=TP2, options=Options(time_limit=60, **options))
    return str(caught.value)


@pytest.mark.slow
def test_a_limit_that_two_pins_break_is_told_with_both() -> None:
    model, args, _ = zoo.mlp()
    text = refusal(memory="60KiB", pins=WHOLE)
    assert "; what conflicts: memory and pin 'up.weight'; a plan was found " in text
    freed = re.search(r"without (pin 'up.weight' and pin 'down.weight'|[^;,]*),", text)
    assert freed is not None
    names = re.findall(r"pin '([^']*)'", freed[1])
    pins = {name: pin for name, pin in WHOLE.items() if name not in names}
    found = plan(model, *args, mesh=TP2, options=Options(memory="60KiB", pins=pins))
    assert found.predicted.bytes <= parse_bytes("60KiB")
    assert len(pins) >= 2, "small pins stay"


def test_one_pin_to_blame_is_left_out() -> None:
    text = refusal(pins={**WHOLE, "gelu/0": "(P(sum),)"})
    assert "has no signature with that placement" in text
    assert re.search(
        r"; a plan was found without pin 'gelu/0', [\d.]+ \w+ a step$", text
    )
    assert "what conflicts" not in text


@pytest.mark.slow
def test_a_limit_that_no_plan_keeps_to_is_told_with_what_would_do() -> None:
    model, args, _ = zoo.mlp()
    text = refusal(memory="40KiB", pins={"up.bias": "(B,)"})
    assert "no pin is to blame" in text
    (within,) = re.findall(r"a plan was found within ([\d.]+ \w+),", text)
    found = plan(model, *args, mesh=TP2, options=Options(memory=within))
    assert found.predicted.bytes <= parse_bytes(within)
    assert "or on 4 ranks (tp=4), " in text


@pytest.mark.slow
def test_a_batch_too_large_is_told_with_one_that_fits_and_in_parts() -> None:
    model, _, _ = zoo.mlp()

    def example(batch: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 32), torch.randn(batch, 32)

    options = Options(memory="60KiB", microbatches=1, time_limit=60)
    with pytest.raises(NoSolution) as caught:
        plan(model, *example(256), mesh=TP2, options=options)
    (batch,) = re.findall(r"or for a batch of (\d+), ", str(caught.value))
    found = plan(model, *example(int(batch)), mesh=TP2, options=options)
    assert found.predicted.bytes <= parse_bytes("60KiB")
    (count,) = re.findall(r"or in (\d+) microbatches, ", str(caught.value))
    options = Options(memory="60KiB", microbatches=int(count))
    found = plan(model, *example(256), mesh=TP2, options=options)
    assert found.predicted.bytes <= parse_bytes("60KiB")
