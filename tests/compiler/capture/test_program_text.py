from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.capture.program_text import parse_program, print_program
from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import Program
from partita.compiler.rules.table import default_rules

OPS = frozenset(row.op for row in default_rules.rows)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 12)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + torch.arange(6).unsqueeze(-1)
        q, k, v = (p.unsqueeze(1) for p in self.qkv(x).chunk(3, -1))
        mask = torch.tensor([float("-inf")] * 3 + [0.0] * 3)
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask.expand(6, 6))
        return self.head(y).float().log_softmax(-1).mean()


@pytest.fixture(scope="module")
def program() -> Program:
    """Return a program with attention, an embedding, a constant and a tied weight."""
    torch.manual_seed(0)
    ids = torch.randint(0, 12, (2, 6))
    return capture(Words(), (ids,), {}).program


def test_what_prints_parses(program: Program) -> None:
    text = print_program(program)
    again = parse_program(text, OPS)
    assert print_program(again) == text
    assert fingerprint(again) == fingerprint(program)
    assert again.inputs == program.inputs
    for name, value in program.constants.items():
        assert torch.equal(again.constants[name], value)


def changed(text: str, start: str, **changes: object) -> str:
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if start in line)
    lines[at] = json.dumps({**json.loads(lines[at]), **changes})
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("os.system", "wanted an op like aten.mm.default"),
        ("aten.__class__.default", "wanted an op like aten.mm.default"),
        ("aten.mm.__init__", "wanted an op like aten.mm.default"),
        ("aten.nothing.default", "wanted an op like aten.mm.default"),
        ("aten.from_file.default", "an op that takes text, which may be a file"),
    ],
)
def test_only_ops_are_looked_up(program: Program, op: str, message: str) -> None:
    text = changed(print_program(program), '"op": "aten.addmm.default"', op=op)
    with pytest.raises(BadPlan, match=message):
        parse_program(text, OPS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": [{"of": ["nowhere"]}]}, "'nowhere', wanted the key of a line above"),
        (
            {"args": [{"dtype": "load"}]},
            "found dtype 'load', wanted e.g. dtype float32",
        ),
        ({"args": [{"a": 1, "b": 2}]}, "line \\d+: ValueError: "),
        ({"types": ["f32[-1]"]}, "is not of the form"),
        ({"phase": "x"}, "line \\d+: ValueError: 'x' is not a valid Phase"),
        ({"args": 3}, "line \\d+: TypeError: "),
    ],
)
def test_damaged_lines_are_named(
    program: Program, changes: dict[str, object], message: str
) -> None:
    text = changed(print_program(program), '"op": "aten.addmm.default"', **changes)
    with pytest.raises(BadPlan, match=message) as caught:
        parse_program(text, OPS)
    assert "\n" not in str(caught.value)
