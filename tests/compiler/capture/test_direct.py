"""A step traced as it is called: what it notes, and which models are exported first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.models import zoo
from tests.slow import slow
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from partita.compiler.capture import capture as capturing
from partita.compiler.capture.capture import capture
from partita.compiler.capture.direct import try_trace
from partita.compiler.capture.fake_copy import fake_copy
from partita.compiler.capture.inputs import describe
from partita.compiler.capture.output_form import OutputForm
from partita.compiler.capture.scored_model import ScoredModel
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import NodeInfo, Program, info, op_name

_VIEWS = re.compile(r"/(_unsafe_view|view|clone)/")


def is_direct(model: nn.Module, *args: Any, loss: Any = None, **kwargs: Any) -> bool:
    """Whether a model is traced without an export."""
    model, making = fake_copy(model)
    spec = describe(model, args, kwargs)
    with making:
        tensors = tuple(spec.example(torch.device("cpu")).values())
    scored = ScoredModel(model, spec, loss, train=True, form=OutputForm())
    return try_trace(scored, tensors) is not None


def facts(program: Program) -> dict[str, NodeInfo]:
    return {info(node).key: info(node) for node in program.calls()}


def without_views(found: Iterable[str]) -> list[str]:
    """Return the keys of what is no view, and is not of one in the backward."""
    return [key for key in found if not _VIEWS.search(key)]


def ops(program: Program) -> list[str]:
    return [op_name(node) for node in program.calls()]


def exported(monkeypatch: pytest.MonkeyPatch, built: zoo.Built) -> Program:
    """Return the program of a model that is exported first."""
    with monkeypatch.context() as patched:
        patched.setattr(capturing, "try_trace", Mock(return_value=None))
        return capture(*built).program


@pytest.mark.parametrize("name", [slow("vit"), "resnet", "encoder"])
def test_it_notes_what_export_notes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, types, modules and lines.

    Which reshapes are views depends on strides, which differ; the loss is reshaped by
    nobody's line.
    """
    built = zoo.ZOO[name]()
    model, args, kwargs = built
    assert is_direct(model, *args, **kwargs)
    direct, other = facts(capture(*built).program), facts(exported(monkeypatch, built))
    assert without_views(direct) == without_views(other)
    for key in without_views(direct):
        fact, like = direct[key], other[key]
        told = fact.types, fact.phase, fact.module
        assert told == (like.types, like.phase, like.module), key
        assert fact.source == like.source or "scored_model" in like.source, key
    assert {fact.module for fact in direct.values()} > {""}
    assert sum(fact.source != "" for fact in direct.values()) > 0.9 * len(direct)


def test_without_a_backward_it_notes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args, kwargs = zoo.ZOO["encoder"]()
    direct = capture(model, args, kwargs, train=False).program
    monkeypatch.setattr(capturing, "try_trace", Mock(return_value=None))
    assert facts(direct) == facts(capture(model, args, kwargs, train=False).program)


class Checkpointed(nn.Module):
    """Three layers, one of them, if asked for, in a checkpoint of a kind."""

    def __init__(self, use_reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)
        self._use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self._use_reentrant is None:
            return self.third(self._hidden(hidden)).square().mean()
        kept = checkpoint(self._hidden, hidden, use_reentrant=self._use_reentrant)
        assert isinstance(kept, Tensor)
        return self.third(kept).square().mean()

    def _hidden(self, x: Tensor) -> Tensor:
        return self.second(x).tanh()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_is_not_made_again(use_reentrant: bool) -> None:
    x = torch.ones(2, 4)
    plain = capture(Checkpointed(None), (x,), {}).program
    program = capture(Checkpointed(use_reentrant), (x,), {}).program
    assert ops(program) == ops(plain)
    assert program.trained == plain.trained
    assert is_direct(Checkpointed(use_reentrant), x)


def test_attention_inside_of_torchs_functions_is_the_one_op() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0].square().mean()

    x = torch.ones(2, 3, 8)
    assert is_direct(Attending(), x)
    program = capture(Attending(), (x,), {}).program
    assert sum("attention" in op for op in ops(program)) == 2


def test_bags_of_embeddings_are_exported_first() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.bag(ids).square().mean()

    assert not is_direct(Bag(), torch.zeros(2, 3, dtype=torch.long))


def test_a_tensor_from_outside_is_no_constant() -> None:
    model, target = nn.Linear(4, 4), torch.ones(2, 4)

    def loss(output: Tensor) -> Tensor:
        return mse_loss(output, target)

    assert not is_direct(model, torch.ones(2, 4), loss=loss)
    with pytest.raises(CaptureFailed, match="no input, parameter or buffer"):
        capture(model, (torch.ones(2, 4),), {}, loss=loss)


def test_numbers_that_the_model_makes_are_its_own() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.w * torch.tensor([1.0, 2.0, 3.0])).sum()

    assert is_direct(Weighted(), torch.ones(2, 3))
    captured = capture(Weighted(), (torch.ones(2, 3),), {})
    (value,) = captured.program.constants.values()
    assert value.tolist() == [1.0, 2.0, 3.0]


def test_lines_of_a_loss_function_are_told() -> None:
    def loss(output: Tensor) -> Tensor:
        return output.exp().sum()

    program = capture(nn.Linear(4, 4), (torch.ones(2, 4),), {}, loss=loss).program
    line = loss.__code__.co_firstlineno + 1
    source = facts(program)["exp/0"].source
    assert source == f"tests/compiler/capture/test_direct.py:{line}"


def test_a_second_name_of_a_parameter_has_no_gradient_of_its_own() -> None:
    program = capture(small.Tied(), (torch.zeros(2, 3, dtype=torch.long),), {}).program
    (trained,) = program.trained
    assert trained == "table.weight"
    assert not any("~tied" in key for key in facts(program))


def test_hooks_are_gone_afterwards() -> None:
    hooks: Any = torch.nn.modules.module
    names = ("_global_forward_pre_hooks", "_global_forward_hooks")
    before = [dict(vars(hooks)[name]) for name in names]
    capture(nn.Sequential(nn.Linear(4, 4)), (torch.ones(2, 4),), {}, loss=torch.sum)
    assert [dict(vars(hooks)[name]) for name in names] == before
