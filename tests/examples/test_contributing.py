"""The code blocks of CONTRIBUTING.md, run."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.examples.documented import ROOT, assert_prints, blocks

from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import info, set_info
from partita.compiler.rules.table import default_rules
from partita.passes.base import run_sequence
from partita.testing.prover import RuleDisproved

BLOCKS = list(blocks(ROOT / "CONTRIBUTING.md"))


def of_section(section: str) -> list[str]:
    return [block.text for block in BLOCKS if block.section == section]


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == len(of_section("Add a signature") + of_section("Add a pass"))


def test_row_is_the_one_in_the_table_and_the_wrong_one_is_disproved() -> None:
    right, wrong, message = of_section("Add a signature")
    known: dict[str, Any] = {}

    exec(right, known)
    with pytest.raises(RuleDisproved) as caught:
        exec(wrong, known)

    assert known["row"] == default_rules.get("aten.mm.default")
    assert known["num_signatures"] > 1
    assert_prints(message, str(caught.value))


class Scored(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu().sum()


def test_pass_removes_what_nobody_uses() -> None:
    known: dict[str, Any] = {"__name__": "drop_unused"}
    (text,) = of_section("Add a pass")
    exec(text, known)
    program = capture(Scored(4, 4), (torch.ones(2, 4),), {}).program
    wasteful = program.copy()
    relu = next(node for node in wasteful.calls() if info(node).key == "relu/0")
    with wasteful.graph.inserting_after(relu):
        unused = wasteful.graph.call_function(torch.ops.aten.neg.default, (relu,))
    set_info(unused, replace(info(relu), key="neg/0"))

    dropped = run_sequence(wasteful, [known["DropUnused"]()])

    assert str(dropped.graph) == str(program.graph)
    assert unused in wasteful.graph.nodes
