from __future__ import annotations

import torch
from tests.models import zoo

from partita.compiler.capture.capture import capture
from partita.compiler.capture.constants import print_constants
from partita.compiler.ir.program import op_name


def test_a_positional_device_prints_without_its_kind() -> None:
    x = torch.zeros(8, 32)
    program = capture(zoo.Perceptron(32, 64), (x, x), {}).program
    gelu = next(n for n in program.calls() if "gelu" in op_name(n))
    gelu.args = (*gelu.args, [torch.device("cuda"), [2.5, None]])
    assert print_constants(gelu) == ("1=[device, [2.5, None]]",)
