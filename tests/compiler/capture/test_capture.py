"""Captured programs compute what the model computes, or the message names the line."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.models import zoo
from tests.models.captured import captured
from torch import Tensor, fx, nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.errors import CaptureFailed
from partita.compiler.invariants import well_formed
from partita.compiler.ir.program import OutputKind, info, op_name

MODELS: dict[str, zoo.Built] = {
    "scale": (small.Scale(), (torch.ones(8, 4),), {}),
    "normed": (small.Normed(), (small.batch(),), {}),
    "tied": (small.Tied(), (torch.arange(6).reshape(2, 3),), {}),
    "rounding": (small.Rounding(), (torch.arange(6).reshape(2, 3),), {}),
    "nested": (
        small.Nested(),
        ({"images": [torch.ones(4)] * 2, "text": torch.arange(4.0)}, torch.ones(4)),
        {"mask": torch.ones(4), "flip": True, "scale": 3.0},
    ),
    "chain": (small.Chain("a", "b"), (small.batch(),), {}),
    "any name": (small.Chain("global", 'a"b', "c\\\n"), (small.batch(),), {}),
    "twice": (small.Twice(), (small.batch(),), {}),
    "attending": (small.Attending(), (torch.randn(2, 3, 8),), {}),
    "learned bias": (small.Attending(True), (torch.randn(2, 3, 8),), {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_program_computes_what_the_model_computes(name: str) -> None:
    model, args, kwargs = MODELS[name]
    program = capture(model, args, kwargs)
    well_formed(program.program)
    found = small.run_captured(program, model, *args, **kwargs)
    loss, wanted = small.run_eager(model, *args, **kwargs)
    torch.testing.assert_close(found.pop("loss:loss"), loss)
    kept = {n: t for n, t in found.items() if not n.startswith("output:")}
    assert {n for n in wanted if n.startswith("gradient:")} <= set(kept)
    for key, tensor in kept.items():
        torch.testing.assert_close(tensor, wanted[key], msg=key)


def test_the_model_itself_is_left_as_it_was() -> None:
    model = small.Normed().train()
    model.lin.eval()
    before = copy.deepcopy(model.state_dict())
    capture(model, (small.batch(),), {})
    assert [model.training, model.lin.training, model.bn.training] == [
        True,
        False,
        True,
    ]
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(model.state_dict(), before)


class Remembering(small.Scale):
    """Keeps what it made in attributes, as recurrent models do between calls."""

    last: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self.hooked: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "is_hooked"):
            self.register_forward_pre_hook(lambda _, __: self.hooked.append(1))
            self.is_hooked = True
        self.last = x * self.w
        self.kept = [self.last]
        return self.last.sum()


def test_what_a_call_keeps_in_attributes_is_not_of_the_trace() -> None:
    model = Remembering()
    capture(model, (torch.ones(8, 4),), {})
    assert (model.last, model.kept) == (None, [])
    copy.deepcopy(model)


class Lazy(small.Scale):
    """Makes a mask when it is first called, counts and lists its calls."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.is_made = False
        self.calls = 0
        self.shapes: list[torch.Size] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_made:
            self.mask = torch.ones_like(x)
            self.is_made = True
        self.calls += 1
        self.shapes.append(x.shape)
        return (x * self.w * self.mask).sum()


def test_attributes_are_what_they_were_however_often_a_trace_calls() -> None:
    model = Lazy()
    capture(model, (torch.ones(8, 4),), {})
    captured = capture(model, (torch.ones(8, 4),), {})
    assert (model.is_made, model.calls, model.shapes) == (False, 0, [])
    assert not hasattr(model, "mask")
    loss, _ = small.run_eager(copy.deepcopy(model), torch.ones(8, 4))
    found = small.run_captured(captured, model, torch.ones(8, 4))
    torch.testing.assert_close(found["loss:loss"], loss)


def test_hooks_that_a_first_call_installs_are_installed_once() -> None:
    model = Remembering()
    capture(model, (torch.ones(8, 4),), {})
    for _ in range(3):
        model(torch.ones(8, 4))
    assert model.hooked == [1, 1]  # from the second call on


def test_a_hook_can_be_removed_after_a_call_that_installed_another() -> None:
    model = Remembering()
    handle = model.register_forward_pre_hook(lambda _, given: (2 * given[0],))
    capture(model, (torch.ones(8, 4),), {})
    handle.remove()
    assert float(model(torch.ones(8, 4)).detach()) == 32.0


def test_submodules_keep_their_own_mode() -> None:
    model = small.Normed().train()
    model.bn.eval()
    program = capture(model, (small.batch(),), {})
    kinds = {role.kind for role in program.program.outputs}
    assert OutputKind.MUTATED_BUFFER not in kinds
    loss, _ = small.run_eager(model, small.batch())
    found = small.run_captured(program, model, small.batch())
    torch.testing.assert_close(found["loss:loss"], loss)


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_meta_device_gives_the_same_program(name: str) -> None:
    _, real = captured(name)
    with torch.device("meta"):
        meta_model, meta_args, meta_kwargs = zoo.ZOO[name]()
    assert all(parameter.is_meta for parameter in meta_model.parameters())
    meta = capture(meta_model, meta_args, meta_kwargs)
    keys = [[info(node).key for node in c.program.nodes()] for c in (real, meta)]
    assert keys[0] == keys[1]
    assert fingerprint(real.program) == fingerprint(meta.program)
    assert real.program.inputs == meta.program.inputs
    assert real.inputs == meta.inputs


class Constant(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)).sum()


class Keeping(small.Scale):
    kept: tuple[Tensor, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        self.kept = (x * self.w,)
        return self.kept[0].sum()


def test_a_meta_model_that_keeps_what_it_computed_is_captured() -> None:
    model, x = Keeping().to("meta"), torch.ones(4, device="meta")
    model(x)
    assert capture(model, (x,), {}).program.trained == {"w"}


def test_constants_of_a_meta_model_keep_their_values() -> None:
    program = capture(Constant().to("meta"), (torch.ones(4, device="meta"),), {})
    (value,) = program.program.constants.values()
    assert value.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_inference_has_outputs_only() -> None:
    model = small.Normed().eval()
    program = capture(model, (small.batch(),), {}, train=False)
    roles = [f"{role.kind}:{role.name}" for role in program.program.outputs]
    assert roles == ["output:loss", "output:y", "output:nested.0", "output:nested.1.0"]
    assert not any("~grad" in info(node).key for node in program.program.nodes())
    found = small.run_captured(program, model, small.batch())
    torch.testing.assert_close(found["output:y"], model(small.batch())["y"])


class Raw(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def test_own_loss_is_differentiated() -> None:
    model = Raw()
    program = capture(model, (small.batch(),), {}, loss=lambda y: y.square().sum() / 2)
    found = small.run_captured(program, model, small.batch())
    torch.testing.assert_close(found["output:output"], small.batch())
    torch.testing.assert_close(found["gradient:w"], small.batch().square().sum(0))


class Assigning(small.Scale):
    count: Tensor

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("count", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count[: self.width] * 0.9 + x.mean(0)[: self.width]
        return (x[:, : self.width] * self.w[: self.width] * self.count).sum()


def test_assigned_buffers_are_written_back() -> None:
    model = small.Around(Assigning())
    program = capture(model, (small.batch(),), {})
    found = small.run_captured(program, model, small.batch())
    _, wanted = small.run_eager(model, small.batch())
    assert "mutated-buffer:inner.count" in found
    for key, tensor in found.items():
        if key in wanted:
            torch.testing.assert_close(tensor, wanted[key])


def test_buffer_that_changes_its_shape_is_refused() -> None:
    with pytest.raises(CaptureFailed) as caught:
        capture(Assigning(3), (small.batch(),), {})
    assert str(caught.value) == (
        "buffer 'count' of Assigning becomes torch.float32 of shape [3], it was "
        "torch.float32 of shape [4]; a step may change only its values"
    )


class Decaying(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.mul_(0.5)  # HERE
        return (x * self.w).sum()


def test_writing_to_a_parameter_is_refused() -> None:
    with pytest.raises(CaptureFailed) as caught:
        capture(Decaying(), (small.batch(),), {})
    line = small.line_of(Decaying).rpartition(":")[2]
    assert str(caught.value).endswith(
        f"test_capture.py:{line}: the model writes to its parameter 'w' in place, and "
        "so does the optimizer; write to it behind optimizer.step(), make it a buffer, "
        "or set requires_grad=False"
    )


class Masking(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        x[:2] = 0.0
        return (x * self.w).square().sum()


def test_what_is_written_to_an_input_stays_in_the_step() -> None:
    model, x = Masking(), small.batch()
    program = capture(model, (x,), {})
    assert [role.name for role in program.program.outputs] == ["loss", "w"]
    found = small.run_captured(program, model, x)
    assert torch.equal(x, small.batch())
    loss, _ = small.run_eager(model, x.clone())
    torch.testing.assert_close(found["loss:loss"], loss)


def test_checks_of_values_are_left_out() -> None:
    model, ids = small.Checking(), torch.arange(6).reshape(2, 3)
    program = capture(model, (ids,), {})
    assert "aten.max.default" not in map(op_name, program.program.calls())
    found = small.run_captured(program, model, ids)
    loss, _ = small.run_eager(model, ids)
    torch.testing.assert_close(found["loss:loss"], loss)


def test_a_backward_of_ones_own_is_kept_and_attention_stays_one_op() -> None:
    model, ids = small.Rounding(), torch.arange(6).reshape(2, 3)
    ops = {op_name(node) for node in capture(model, (ids,), {}).program.calls()}
    assert {"partita.attention.default", "partita.attention_backward.default"} <= ops
    _, wanted = small.run_eager(model, ids)
    assert wanted["gradient:table.weight"].abs().max() > 0.0


def test_modules_of_any_name_have_their_calls() -> None:
    program = capture(small.Chain("global", 'a"b'), (small.batch(),), {}).program
    keys = {info(node).key for node in program.calls()}
    assert {"blocks.global.1/addmm/0", 'blocks.a"b.1/addmm/0'} <= keys
    assert {"blocks.global.1.weight", 'blocks.a"b.0.bias'} <= program.trained


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.cell = kind(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0].square().mean()


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_ordinary_ops(
    kind: Callable[[int, int], nn.Module],
) -> None:
    model, x = Recurrent(kind), torch.randn(3, 2, 4)
    program = capture(model, (x,), {})
    assert not any("rnn" in op_name(node) for node in program.program.calls())
    assert torch.backends.mkldnn.enabled
    found = small.run_captured(program, model, x)
    loss, wanted = small.run_eager(model, x)
    torch.testing.assert_close(found["loss:loss"], loss)
    for key, tensor in wanted.items():
        torch.testing.assert_close(found[key], tensor)


class Dropping(small.Scale):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x * self.w).sum()  # HERE


def test_dropout_draws_by_seed_and_element() -> None:
    program = capture(small.Around(Dropping()), (small.batch(),), {}).program
    ops = [op_name(node) for node in program.calls()]
    assert ops.count("partita.random.default") == 1
    assert "aten.native_dropout.default" not in ops
    (draw,) = program.draws
    assert draw.startswith("inner.drop/native_dropout")


def test_dropout_in_eval_mode_is_nothing() -> None:
    program = capture(Dropping().eval(), (small.batch(),), {})
    assert not any("dropout" in op_name(n) for n in program.program.calls())


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_zoo_program_computes_what_the_model_computes(name: str) -> None:
    (model, args, kwargs), program = captured(name)
    found = small.run_captured(program, model, *args, **kwargs)
    loss, wanted = small.run_eager(model, *args, **kwargs)
    torch.testing.assert_close(found["loss:loss"], loss)
    for key, tensor in wanted.items():
        if key in found:
            torch.testing.assert_close(
                found[key], tensor, rtol=1e-4, atol=1e-5, msg=key
            )
    assert {k for k in found if k.startswith("gradient:")} == {
        k for k in wanted if k.startswith("gradient:")
    }


_GRAPHS_WITH_CODE = 6  # of some twelve that torch goes through


def test_code_is_made_of_few_of_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    make: Callable[..., object] = vars(fx.Graph)["python_code"]
    sizes: list[int] = []

    def counted(graph: fx.Graph, *args: object, **kwargs: object) -> object:
        sizes.append(len(graph.nodes))
        return make(graph, *args, **kwargs)

    monkeypatch.setattr(fx.Graph, "python_code", counted)
    capture(small.Normed(), (small.batch(),), {})
    assert len(sizes) <= _GRAPHS_WITH_CODE


class Unmasked(small.Scale):
    """Makes the mask that it needs, but not where it is told that it is compiled."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape)
        assert mask is not None, "no mask"
        return (x * self.w * mask[:, :1]).sum()


def test_a_model_that_an_export_cannot_take_is_traced_as_it_is_run() -> None:
    program = capture(Unmasked(), (torch.randn(2, 4),), {}).program
    assert program.trained == {"w"}
