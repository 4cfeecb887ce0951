"""Gradients that several stages make: taken apart, and only where that is so."""

from __future__ import annotations

import torch
from tests.models.dropout import with_dropout
from tests.passes.test_cut_stages import annotated
from torch import nn

from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import OutputKind, Program, info, value_of
from partita.compiler.rules.table import default_rules
from partita.compiler.search.cut_line import Line
from partita.compiler.search.stage_of import stage_of
from partita.microbatched import in_microbatches
from partita.passes.annotate_stages import AnnotateStages
from partita.passes.share_gradients import ShareGradients


def gradients(program: Program) -> dict[str, int]:
    return {
        role.name: info(value_of(node).node).stage
        for node, role in program.results()
        if role.kind.is_gradient
    }


def test_a_sum_of_two_stages_is_taken_apart() -> None:
    program = annotated(with_dropout("gpt2"), (20,))
    name = "transformer.wte.weight"
    apart = ShareGradients().run(program)
    assert gradients(apart)[name] == 0
    assert gradients(apart)[f"{name} of stage 1"] == 1
    assert len(apart.outputs) == len(program.outputs) + 1
    keys = {info(node).key for node in program.calls()}
    gone = keys - {info(node).key for node in apart.calls()}
    assert gone == {"transformer.wte/embedding/0~grad/add.Tensor/0"}


def test_a_sum_of_one_stage_stays() -> None:
    program = annotated(with_dropout("gpt2"), ())
    apart = ShareGradients().run(program)
    assert apart.outputs == program.outputs
    assert [n.name for n in apart.calls()] == [n.name for n in program.calls()]


class Thrice(nn.Module):
    """Uses one weight three times, with a layer after each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(4, 4, bias=False)
        self.between = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 4]``."""
        for layer in self.between:
            x = layer(self.shared(x)).relu()
        return x.square().mean()


def test_two_uses_in_one_stage_make_one_part() -> None:
    built = Thrice(), (torch.randn(8, 4),), {}
    whole = annotated(built, ())
    forward = [n for n in whole.calls() if info(n).phase.value == "forward"]
    second = next(
        at
        for at, node in enumerate(forward)
        if "between.0/relu" in info(node).key or "relu/0" in info(node).key
    )
    program = annotated(built, (second + 1,))
    found = gradients(ShareGradients().run(program))
    assert found["shared.weight"] == 0
    assert found["shared.weight of stage 1"] == 1
    assert sum("shared" in name for name in found) == 2


def test_parts_add_up_over_microbatches_like_the_whole() -> None:

    model, args, kwargs = with_dropout("gpt2")
    captured = in_microbatches(capture(model, args, kwargs), 2, default_rules)
    forward = Line.of(captured.program).forward
    stages = {key: int(at > 20) for at, key in enumerate(forward)}
    placed = AnnotateStages(stage_of(captured.program, stages)).run(captured.program)
    apart = ShareGradients().run(placed)
    joins = dict(zip(apart.outputs, apart.in_time.joins, strict=True))
    kinds = {join for role, join in joins.items() if role.kind is OutputKind.GRADIENT}
    parts = OutputKind.SHARED_GRADIENT
    assert {join for role, join in joins.items() if role.kind is parts} == kinds
