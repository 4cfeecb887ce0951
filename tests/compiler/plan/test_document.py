from dataclasses import fields
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from small_plan import MESH, small_plan

import partita.compiler.plan.document as document
import partita.compiler.plan.input_spec as input_spec
import partita.compiler.plan.reported as reported
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.codec import record_keys
from partita.compiler.plan.document import Boxing, LoweringStep, Ref
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.store import format_json, read_schema

RECORDS = {
    "alternative": document.Alternative,
    "boxing": document.Boxing,
    "buffer": document.Buffer,
    "collective": document.CollectiveTotal,
    "input": input_spec.InputLeaf,
    "node": document.Node,
    "output": document.Output,
    "parameter": document.Parameter,
    "reported": reported.Reported,
    "stage": document.Stage,
    "step": document.LoweringStep,
    "signature": document.Signature,
}
PARTS = {
    "inputs": input_spec.InputSpec,
    "model": document.ModelId,
    "options": document.PlanOptions,
    "predicted": document.Predicted,
    "schedule": document.Schedule,
    "search": SearchResult,
}


@given(st.builds(Ref, st.text(min_size=1), st.integers(0, 30)))
def test_reference_prints_and_parses(ref: Ref) -> None:
    assert Ref.parse(str(ref)) == ref


def test_schema_and_records_name_the_same_keys() -> None:
    schema = read_schema()
    forms: dict[str, Any] = {name: schema["$defs"][name] for name in RECORDS}
    forms |= {name: schema["properties"][name] for name in PARTS}
    forms["plan"] = schema
    for name, record in {**RECORDS, **PARTS, "plan": document.Document}.items():
        keys = [key for _, key in record_keys(record)]
        assert sorted(forms[name]["properties"]) == sorted(keys), name


def test_schema_explains_every_key_of_a_node_and_the_plan() -> None:
    schema = read_schema()
    for form in (schema, schema["$defs"]["node"]):
        for key, value in form["properties"].items():
            assert "$ref" in value or "description" in value, key


def test_schema_is_itself_valid() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(read_schema())


def test_every_record_is_frozen() -> None:
    for record in RECORDS.values():
        value = small_plan().boxings[0] if record is Boxing else None
        assert record.__dataclass_params__.frozen, record  # type: ignore[attr-defined]
        if value is not None:
            with pytest.raises(AttributeError):
                value.key = "other"  # type: ignore[misc]


def test_boxing_adds_up_its_steps() -> None:
    start, middle, end = (Placement.parse(t) for t in ("(P, P)", "(P, B)", "(B, B)"))
    steps = (
        LoweringStep("all_reduce", "tp", middle, 8, 8, 0.5),
        LoweringStep("all_reduce", "dp", end, 4, 4, 0.25),
    )
    boxing = Boxing("k", "n", start, end, steps, ("c",))
    assert (boxing.axis, boxing.bytes, boxing.seconds) == (("tp", "dp"), 12, 0.75)
    assert [str(step) for step in steps] == ["all_reduce tp", "all_reduce dp"]


def test_part_of_a_document_takes_one_line_an_entry() -> None:
    text = format_json({"b": [], "a": [1, {"y": 1, "x": 2}], "c": {}})
    assert text == '{\n"a": [\n  1,\n  {"x": 2, "y": 1}\n],\n"b": [],\n"c": {}\n}'


def test_document_fields_have_no_key_of_their_own_twice() -> None:
    names = [item.name for item in fields(document.Document)]
    assert len(set(names)) == len(names)
    assert MESH.names == ("dp", "tp")
