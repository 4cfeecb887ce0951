"""Every input and output of a captured program has the role it has in the model."""

from __future__ import annotations

import torch
from tests.compiler.capture import small_models as small
from tests.models.captured import captured

from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    OutputKind,
    OutputRole,
    Phase,
    Value,
    info,
    type_of,
)


def test_roles_of_everything() -> None:
    program = capture(small.Normed(), (small.batch(),), {}).program
    parameters = [
        "frozen",
        "lin.weight",
        "lin.bias",
        "bn.weight",
        "bn.bias",
        "unused.weight",
        "unused.bias",
    ]
    statistics = ["bn.running_mean", "bn.running_var", "bn.num_batches_tracked"]
    assert list(program.inputs) == [
        *(InputRole(InputKind.PARAMETER, name) for name in parameters),
        *(InputRole(InputKind.BUFFER, name) for name in ["shift", *statistics]),
        InputRole(InputKind.INPUT, "x"),
        InputRole(InputKind.LOSS_SCALE, "loss_scale"),
    ]
    outputs = ["y", "nested.0", "nested.1.0"]
    trained = ["lin.weight", "lin.bias", "bn.weight", "bn.bias"]
    assert list(program.outputs) == [
        *(OutputRole(OutputKind.MUTATED_BUFFER, name) for name in statistics),
        OutputRole(OutputKind.LOSS, "loss"),
        *(OutputRole(OutputKind.OUTPUT, name) for name in outputs),
        *(OutputRole(OutputKind.GRADIENT, name) for name in trained),
    ]


def test_placeholders_have_the_types_of_what_they_stand_for() -> None:
    model = small.Normed()
    program = capture(model, (small.batch(),), {}).program
    real = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for node, role in program.placeholders():
        if role.name in real:
            type_ = type_of(Value(node, 0))
            assert type_.shape == tuple(real[role.name].shape)
            assert type_.dtype == real[role.name].dtype
        assert info(node).key == f"{role.kind}:{role.name}"
        assert info(node).phase is Phase.FORWARD


def test_tied_parameters_are_one() -> None:
    program = capture(small.Tied(), (torch.zeros(2, 3, dtype=torch.int64),), {}).program
    assert program.inputs[:2] == (
        InputRole(InputKind.PARAMETER, "table.weight", ("head.weight",)),
        InputRole(InputKind.BUFFER, "scale", ("same_scale",)),
    )
    gradients = [r.name for r in program.outputs if r.kind is OutputKind.GRADIENT]
    assert gradients == ["table.weight"]


def test_gpt2_ties_its_head_to_its_embedding() -> None:
    (model, _, _), found = captured("gpt2")
    program = found.program
    tied = [role for role in program.inputs if role.aliases]
    assert tied == [
        InputRole(InputKind.PARAMETER, "transformer.wte.weight", ("lm_head.weight",))
    ]
    names = [r.name for r in program.inputs if r.kind is InputKind.PARAMETER]
    assert sorted(names) == sorted(dict(model.named_parameters()))


class Offset(small.Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.w + torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()


def test_tensors_out_of_nothing_are_constants() -> None:
    program = capture(Offset(), (small.batch(),), {}).program
    constants = [role for role in program.inputs if role.kind is InputKind.CONSTANT]
    assert constants == [InputRole(InputKind.CONSTANT, "constant.0")]
    assert program.constants["constant.0"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_unused_constants_are_left_out() -> None:
    program = captured("gpt2")[1].program  # its caches start as empty tensors
    assert [name for name in program.constants if name.startswith("constant.")] == []
    entering = {r.name for r in program.inputs if r.kind is InputKind.CONSTANT}
    assert entering == set(program.constants)
