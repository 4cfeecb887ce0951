"""Parts of ops in the place of the ops."""

from __future__ import annotations

import torch
from torch import nn

from partita.compiler.capture.capture import capture
from partita.compiler.invariants import well_formed
from partita.compiler.ir.program import info, op_name
from partita.compiler.rules.calls import call_of
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.inline import inline
from partita.compiler.rules.table import default_rules


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).softmax(-1).square().sum()


def test_parts_take_the_place_of_ops_of_one_result_and_of_several() -> None:
    program = capture(Normed(), (torch.randn(4, 6),), {}).program
    expansions: dict[str, Expansion] = {}
    for node in program.calls():
        rule = default_rules.get(op_name(node))
        if rule is not None and rule.expand is not None:
            found = Expansion.of(default_rules, rule, call_of(node))
            assert found is not None
            expansions[info(node).key] = found
    assert len(expansions) == 4  # the norm, the softmax, and their backwards

    parts = inline(program, expansions)

    well_formed(parts)
    assert not {info(node).key for node in parts.calls()} & set(expansions)
    rsqrt = "norm/native_layer_norm/0~expand/rsqrt/0"
    (made,) = [node for node in parts.calls() if info(node).key == rsqrt]
    assert info(made).module == "norm"
    x, weight, bias = torch.randn(4, 6), torch.randn(6), torch.randn(6)
    given = {"norm.weight": weight, "norm.bias": bias, "args.0": x, "x": x}
    one = torch.ones(())  # the loss scale
    values = [given.get(role.name, one) for role in program.inputs]
    wanted = program.graph_module(*values)
    for got, want in zip(parts.graph_module(*values), wanted, strict=True):
        torch.testing.assert_close(got, want)
