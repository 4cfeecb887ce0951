import json
import math
from collections import OrderedDict, deque
from typing import Any

import pytest
import torch

from partita.compiler.capture.inputs import describe
from partita.compiler.errors import BadPlan
from partita.compiler.plan.codec import decoder, encode
from partita.compiler.plan.input_spec import InputLeaf, InputSpec
from partita.compiler.plan.inputs import (
    check_inputs,
    check_microbatches,
    from_capture,
    to_capture,
)

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def through_json(spec: InputSpec) -> InputSpec:
    return decoder(InputSpec)(json.loads(json.dumps(encode(spec))))


def test_call_is_made_again_from_the_document() -> None:
    x, y = torch.ones(2, 3), torch.zeros(4, dtype=torch.int64)
    args = (x, [1.5, "same", None, {"b": True, "a": -math.inf}])
    kwargs = {"z": OrderedDict(k=y), "empty": ()}
    spec = from_capture(describe(torch.nn.Identity(), args, kwargs))
    check_inputs(spec)
    again = to_capture(through_json(spec))
    tensors = dict(zip(again.tensors, (x, y), strict=True))
    assert again.rebuild(tensors) == (args, kwargs)
    assert list(spec.tensors.values()) == [again.leaves[name] for name in tensors]


def test_structure_with_more_than_lists_tuples_and_dicts_is_not_kept() -> None:
    described = describe(torch.nn.Identity(), (deque([torch.ones(1), 2]),), {})
    spec = from_capture(described)
    check_inputs(through_json(spec))
    assert spec.tree is None
    with pytest.raises(BadPlan, match=r"inputs.tree: the structure .* was not kept"):
        to_capture(spec)


def tree(type_: str, context: str, *children: Any) -> list[Any]:
    return [1, {"type": type_, "context": context, "children_spec": list(children)}]


ENUM = json.dumps([{"__enum__": True, "fqn": "antigravity:X", "name": "y"}])


@pytest.mark.parametrize(
    "hostile",
    [
        tree("collections.namedtuple", '{"fqn": "antigravity.X"}', LEAF),
        tree("collections.defaultdict", '{"default_factory_module": "os"}', LEAF),
        tree("builtins.dict", ENUM, LEAF),
        tree("builtins.list", ENUM, LEAF),
        tree("builtins.dict", "[[1]]", LEAF),
        tree("builtins.dict", "{", LEAF),
        tree("builtins.dict", '["a", "b"]', LEAF),
        [2, LEAF],
        [1],
        [1, {**LEAF, "type": "builtins.tuple"}],
        [1, {"type": None}],
        [1, {**LEAF, "children_spec": "x"}],
        [1, {**LEAF, "children_spec": [LEAF]}],
        {"a": 1},
        tree("builtins.tuple", "null", LEAF, LEAF),
    ],
)
def test_tree_that_torch_must_not_read_is_refused(hostile: Any) -> None:
    with pytest.raises(BadPlan, match=r"^inputs\.tree"):
        check_inputs(InputSpec((InputLeaf("x", constant=1),), hostile))


@pytest.mark.parametrize("constant", [{"float": "1"}, {}, [1], {"a": 1}])
def test_constant_that_is_none_is_refused(constant: Any) -> None:
    with pytest.raises(BadPlan, match=r"^inputs\.leaves\[0\]\.constant: found"):
        check_inputs(InputSpec((InputLeaf("x", constant=constant),), [1, LEAF]))


def test_a_batch_is_not_cut_into_more_parts_than_it_has_rows() -> None:
    spec = from_capture(describe(torch.nn.Identity(), (torch.ones(4, 8), 2), {}))
    check_microbatches(4, spec)
    with pytest.raises(BadPlan, match=r"microbatches: found 1000000, wanted at most 4"):
        check_microbatches(10**6, spec)
    check_microbatches(1, InputSpec((), None))
