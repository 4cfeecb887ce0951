"""Bundles of plans made with rows of one's own carry them, or say that they cannot."""

from __future__ import annotations

import json
import zipfile
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import partita as pt
from partita.cli.main import main
from partita.compiler.errors import BadOptions, BadPlan
from partita.verifying.bundle import ABOUT, GRAPH, PLAN, Bundle

OP = "aten.special_erfcx.default"
RULES = pt.default_rules.with_(pt.Rule(OP, "* -> *"))
"""With a row for an op that the default table has none for."""


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(torch.special.erfcx(x)).square().mean()


def scaled() -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, object]]:
    torch.manual_seed(0)
    return Scaled(), (torch.rand(4, 6),), {}


@cache
def planned() -> pt.Plan:
    model, args, _ = scaled()
    options = pt.Options(rules=RULES, pins={"x": "(S(0),)"}, microbatches=1)
    plan = pt.plan(model, *args, mesh="dp=2", options=options)
    (key,) = (key for key, node in plan.nodes.items() if node.op == OP)
    assert str(plan.nodes[key].signature) == "(S(0),) -> (S(0),)"
    return plan


def saved(folder: Path) -> str:
    bundle = Bundle.of(*scaled(), planned(), rules=RULES)
    assert bundle.about["replayed"]["ok"]
    path = folder / "own.bundle.zip"
    path.write_bytes(bundle.save())
    return str(path)


def test_rows_of_ones_own_come_along_and_replay(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (row,) = json.loads(zipfile.ZipFile(path).read(ABOUT))["rules"]
    assert (row["op"], row["dims"]) == (OP, "* -> *")
    loaded = Bundle.load(path)
    assert loaded.rules == RULES
    assert loaded.replay().ok
    assert main(["verify", path]) == 0


def test_rows_that_no_call_of_the_plan_uses_stay_behind() -> None:
    other = RULES.with_(pt.Rule("aten.special_i0e.default", "* -> *"))
    bundle = Bundle.of(*scaled(), planned(), rules=other)
    assert [row["op"] for row in bundle.about["rules"]] == [OP]


def test_a_plan_of_other_rules_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    message = (
        "bundle: no rule given here allows what the plan does at 'special_erfcx/0'; it "
        "was made with Options(rules=...), so want Bundle.of(..., rules=) or --rules "
        "with the same"
    )
    with pytest.raises(BadOptions) as caught:
        Bundle.of(*scaled(), planned())
    assert str(caught.value) == message
    target, plan = tmp_path / "scaled.py", str(tmp_path / "plan.json")
    target.write_text(f"from {__name__} import scaled as build\n")
    planned().save(plan)
    argv = ["bundle", f"{target}:build", plan, "-o", str(tmp_path / "made.zip")]
    assert main(argv) == 2
    assert capsys.readouterr().err == f"partita: {message}\n"
    assert not (tmp_path / "made.zip").exists()


def test_a_row_that_is_a_function_is_refused() -> None:
    rules = pt.default_rules.with_(pt.Rule(OP, lambda _: "* -> *"))
    message = (
        f"bundle: the rule of {OP} has a function as its dims, and a bundle holds no "
        "code; want a rule of text alone"
    )
    with pytest.raises(BadOptions) as caught:
        Bundle.of(*scaled(), planned(), rules=rules)
    assert str(caught.value) == message


def repacked(path: str, row: dict[str, object]) -> str:
    """Return a bundle whose row has other words."""
    archive = zipfile.ZipFile(path)
    texts = {name: archive.read(name).decode() for name in (PLAN, GRAPH, ABOUT)}
    about = json.loads(texts[ABOUT])
    about["rules"] = [{**about["rules"][0], **row}]
    texts[ABOUT] = json.dumps(about)
    other = f"{path}.zip"
    with zipfile.ZipFile(other, "w") as made:
        for name, text in texts.items():
            made.writestr(name, text)
    return other


def test_a_wrong_row_of_a_stranger_replays_as_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path)
    loaded = Bundle.load(repacked(path, {"dims": "a b -> a ?"}))
    assert loaded.replay().ok  # another row, of which the plan's signature holds too
    refused = Bundle.load(repacked(path, {"dims": "? ? -> ? ?"})).replay()
    assert not refused.ok
    assert "no rule of" in refused.failure
    with pytest.raises(BadPlan, match="found a damaged bundle"):
        Bundle.load(repacked(path, {"reduce": "eval"}))
    with pytest.raises(BadPlan, match="wanted a rule's words"):
        Bundle.load(repacked(path, {"dims": 7}))
