"""Inputs are named after the parameters of forward, however they are passed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.compiler.capture.small_models import Nested, Scale
from torch import nn

from partita.compiler.capture.inputs import (
    InputSpec,
    describe,
    leaf_namer,
    name_leaves,
)
from partita.compiler.errors import BadBatch, BadPlan, CaptureFailed
from partita.compiler.ir.tensor_type import TensorType

T = torch.ones(4)


def test_nested_leaves_are_named_by_their_path() -> None:
    batch = {"images": [T, T], "text": T}
    spec = describe(Nested(), (batch, T, T), {"mask": T, "scale": 3.0})
    f32 = TensorType((4,), torch.float32)
    assert spec.leaves == {
        "batch.images.0": f32,
        "batch.images.1": f32,
        "batch.text": f32,
        "args.1": f32,
        "args.2": f32,
        "mask": f32,
        "scale": 3.0,
    }
    assert spec.tensors == tuple(n for n in spec.leaves if n != "scale")


def test_tensors_alone_are_named_as_among_others() -> None:
    named = leaf_namer(Nested())
    alone = named((T, T, T), {"mask": T})
    assert list(alone) == ["batch", "args.1", "args.2", "mask"]
    assert all(leaf is T for leaf in alone.values())
    among = named((T, T, T), {"mask": T, "scale": 3.0})
    assert list(among) == [*alone, "scale"]


def test_a_namer_does_not_hold_the_model() -> None:
    model = Scale()
    held, named = weakref.ref(model), leaf_namer(model)
    del model
    gc.collect()
    assert held() is None
    assert named((T,), {}) == {"x": T}


def test_positional_and_keyword_inputs_have_one_name() -> None:
    x = torch.ones(8, 4)
    positional = describe(Scale(), (x,), {})
    keyword = describe(Scale(), (), {"x": x})
    assert (
        positional.leaves == keyword.leaves == {"x": TensorType((8, 4), torch.float32)}
    )


class Bare(nn.Module):
    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return args[0].sum()


def test_an_input_that_is_given_twice_is_refused() -> None:
    with pytest.raises(BadBatch) as refused:
        name_leaves(Scale(), (T,), {"x": T})
    assert str(refused.value) == (
        "batch: input 'x' is given by position and by name; want it once"
    )


def test_arguments_without_a_name_are_counted() -> None:
    assert list(name_leaves(Bare(), (T, (T, T)), {})) == [
        "args.0",
        "args.1.0",
        "args.1.1",
    ]


LEAVES = st.one_of(
    st.just(T),
    st.integers(-9, 9),
    st.booleans(),
    st.none(),
    st.text("ab", max_size=2),
    st.floats(-2, 2),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(st.lists(TREES, max_size=3), st.dictionaries(st.sampled_from("pq"), TREES))
def test_rebuild_returns_the_arguments(args: list[Any], kwargs: dict[str, Any]) -> None:
    leaves = name_leaves(Bare(), args, kwargs)
    spec = describe(Bare(), args, kwargs)
    tensors = {n: leaf for n, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    assert spec.tensors == tuple(tensors)
    assert repr(spec.rebuild(tensors)) == repr((tuple(args), kwargs))


@pytest.mark.parametrize(
    ("value", "kind"), [({1, 2}, "set"), (object(), "object"), (1j, "complex")]
)
def test_other_inputs_are_refused(value: object, kind: str) -> None:
    with pytest.raises(CaptureFailed) as caught:
        describe(Nested(), ({"images": [T, value]},), {})
    assert str(caught.value) == (
        f"input 'batch.images.1' is a {kind}; want tensors, numbers, text, None, and "
        "lists, tuples and dicts of them"
    )


def test_examples_are_zeros_of_the_right_type() -> None:
    spec = InputSpec({"ids": TensorType((2, 3), torch.int64), "scale": 2.0}, "")
    made = spec.example(torch.device("cpu"))
    assert list(made) == ["ids"]
    assert made["ids"].dtype is torch.int64
    assert made["ids"].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_damaged_tree_is_refused() -> None:
    spec = InputSpec({"x": TensorType((4,), torch.float32)}, "[1, {}]")
    with pytest.raises(BadPlan, match=r"^inputs.tree: no pytree of the inputs \("):
        spec.rebuild({"x": T})
