from __future__ import annotations

import json

import pytest
import torch
from tests.models.zoo import ZOO

from partita.compiler.capture.capture import capture
from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.capture.program_text import parse_program, print_program
from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import Program
from partita.compiler.rules.table import default_rules

OPS = frozenset(row.op for row in default_rules.rows)


@pytest.fixture(scope="module")
def program() -> Program:
    model, args, kwargs = ZOO["gpt2"]()
    return capture(model, args, kwargs).program


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
