"""Rules of the user's own on the command line: found, refused in one line, obeyed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.cli.rules import load_rules
from partita.compiler.errors import BadOptions
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules

Captured = pytest.CaptureFixture[str]

OP = "of_test_rules.wave.default"
SOURCE = """
import torch
import partita as pt

@torch.library.custom_op("of_test_rules::wave", mutates_args=())
def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)

@wave.register_fake
def _(x):
    return torch.empty_like(x)

class Waves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 8)
    def forward(self, x):
        return self.up(wave(x)).square().flatten(1).mean(1).mean()

def build():
    torch.manual_seed(0)
    return Waves(), (torch.randn(4, 6),), {}

ROW = pt.Rule("of_test_rules.wave.default", "* -> *")
ROWS = [ROW]
TABLE = pt.default_rules.with_(ROW)
WRONG = pt.Rule("of_test_rules.wave.default", "* -> *", linear="0")
OTHER = pt.Rule("of_test_rules::wave", "* -> *")
NUMBER, EMPTY = 3, []
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file with an op of its own, a model that calls it, rules for it."""
    path = tmp_path_factory.mktemp("own") / "waves_of_test_rules.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture(scope="module")
def plan(own: str) -> str:
    """Return the plan that splits the op, as one of the rules has it."""
    path = str(Path(own).with_suffix(".json"))
    given = ["--mesh", "dp=2", "--pin", "x=(S(0))", "--rules", f"{own}:ROWS"]
    assert main(["plan", f"{own}:build", *given, "-o", path]) == 0
    (node,) = (node for node in Plan.load(path).nodes.values() if node.op == OP)
    assert str(node.signature) == "(S(0),) -> (S(0),)"
    return path


def test_a_row_rows_and_a_table_are_rules(own: str) -> None:
    assert load_rules(None) is default_rules
    for name in ("ROW", "ROWS", "TABLE"):
        rules = load_rules(f"{own}:{name}")
        assert [row.op for row in rules.rows if row not in default_rules.rows] == [OP]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X", "--rules 'X': want file.py:NAME or package.module:NAME"),
        ("none.py:X", "--rules none.py:X: there is no Python file 'none.py'"),
        (
            "no_such_package.x:X",
            "--rules no_such_package.x:X: there is no module 'no_such_package'; for a "
            "file write file.py:NAME",
        ),
        (
            "{own}:ROWZ",
            "--rules {own}:ROWZ: {own} has no ROWZ; did you mean ROW, ROWS?",
        ),
        ("{own}:NUMBER", "--rules {own}:NUMBER: NUMBER is of type int; want a"),
        ("{own}:EMPTY", "--rules {own}:EMPTY: EMPTY is of type list; want a"),
    ],
)
def test_what_is_no_rule_is_refused_in_one_line(
    own: str, text: str, message: str
) -> None:
    with pytest.raises(BadOptions) as caught:
        load_rules(text.format(own=own))
    assert str(caught.value).startswith(message.format(own=own))
    assert "\n" not in str(caught.value)


def test_a_row_that_does_not_hold_is_disproved(own: str, capsys: Captured) -> None:
    given = ["--mesh", "dp=2", "--rules", f"{own}:WRONG"]
    assert main(["plan", f"{own}:build", *given]) == 2
    *_, last = capsys.readouterr().err.splitlines()  # progress, if it took long
    assert last.startswith(f"partita: rule disproved: {OP} of ")


def test_a_row_that_no_call_has_is_told(own: str, capsys: Captured) -> None:
    given = ["--mesh", "dp=2", "--rules", f"{own}:OTHER"]
    assert main(["plan", f"{own}:build", *given]) == 0
    said = f"partita: --rules {own}:OTHER: the model has no call of of_test_rules::wave"
    assert f"{said}; did you mean {OP}?\n" in capsys.readouterr().err


def test_rules_stand_where_the_model_does(
    own: str, plan: str, capsys: Captured, tmp_path: Path
) -> None:
    words = [f"{own}:build", plan]
    given = ["--rules", f"{own}:ROWS"]
    assert main(["verify", *words]) == 1
    told = capsys.readouterr().out
    assert f"no rule of {OP} allows (S(0),) -> (S(0),); there is none" in told
    assert "--rules" in told
    assert main(["verify", *words, *given]) == 0
    for suffix in ("python", "pt2"):
        made = ["--to", suffix, "-o", str(tmp_path / suffix)]
        assert main(["export", *reversed(words), *made]) == 2
        assert main(["export", *reversed(words), *made, *given]) == 0
    assert f"torch.ops.{OP}(" in (tmp_path / "python").read_text()
    kept = str(tmp_path / "kept.json")
    again = ["--like", plan, *given, "-o", kept]
    assert main(["plan", f"{own}:build", *again]) == 0
    assert "like " in capsys.readouterr().err
    signatures = [
        {k: n.signature for k, n in p.nodes.items()}
        for p in map(Plan.load, (kept, plan))
    ]
    assert signatures[0] == signatures[1]


def test_an_export_of_the_plan_alone_takes_none(
    own: str, plan: str, capsys: Captured
) -> None:
    assert main(["export", plan, "--to", "dot", "--rules", f"{own}:ROWS"]) == 2
    assert "--to dot is of the plan alone; want none" in capsys.readouterr().err


def test_a_bundle_replays_elsewhere_with_the_rules_that_bring_its_op(
    own: str, plan: str, tmp_path: Path, capsys: Captured
) -> None:
    path, given = str(tmp_path / "own.zip"), ["--rules", f"{own}:ROWS"]
    assert main(["bundle", f"{own}:build", plan, *given, "-o", path]) == 0
    assert main(["verify", path]) == 2
    refused = f"found '{OP}', wanted an op like aten.mm.default; one of your own needs "
    assert f"{refused}your rules, whose file defines it\n" in capsys.readouterr().err
    command = [sys.executable, "-m", "partita", "verify", path, *given]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout.startswith("verify: ok: "), done.stderr


@pytest.mark.dist
def test_ranks_run_with_them(
    own: str, plan: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["run", f"{own}:build", plan, "--steps", "1"]
    assert main([*words, "--rules", f"{own}:ROWS"]) == 0
    assert capfd.readouterr().out.startswith("step    1  loss ")
