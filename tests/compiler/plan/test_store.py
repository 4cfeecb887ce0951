import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from small_plan import DOCUMENT, replaced, small_plan

from partita.compiler.errors import BadPlan
from partita.compiler.plan.input_spec import InputSpec
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.store import check_writable, write_bytes

DATA = small_plan().to_dict()
TEXT = DOCUMENT.read_text("utf-8")


def load_error(folder: Path, content: bytes | str) -> str:
    path = folder / "p.json"
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(raw)
    with pytest.raises(BadPlan) as caught:
        Plan.load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(str(folder) + "/")


def test_saved_plan_loads_equal(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "a.json")
    assert Plan.load(tmp_path / "a.json") == plan
    assert Plan.from_dict(plan.to_dict()) == plan
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_document_of_version_1_keeps_its_form(plan: Plan) -> None:
    """A change here changes what is checked in by users: raise VERSION or undo it."""
    written = plan.to_dict()
    assert Plan.load(DOCUMENT) == plan
    assert all(_says(written[key], value) for key, value in json.loads(TEXT).items())


def _says(found: Any, wanted: Any) -> bool:
    """Whether all of ``wanted`` is in ``found``; newer keys may have come."""
    if isinstance(wanted, dict):
        items = cast("dict[str, Any]", wanted).items()
        return all(key in found and _says(found[key], x) for key, x in items)
    if isinstance(wanted, list):
        pairs = zip(found, cast("list[Any]", wanted), strict=True)
        return all(_says(own, known) for own, known in pairs)
    return found == wanted


def test_document_has_the_promised_keys(plan: Plan) -> None:
    promised = (
        "partita version model mesh stages hardware parameters nodes boxings schedule "
        "microbatches recompute fusion order outputs collectives predicted search"
    ).split()
    added = (
        "ahead buckets buffers derived_rules expanded inputs joined late options "
        "reported transfers"
    ).split()
    assert sorted(plan.to_dict()) == sorted([*promised, *added])


def test_json_has_one_node_a_line_and_sorted_keys() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith('  "up/mm/0":')]
    assert len(lines) == 1
    parts = [line.partition(":")[0] for line in TEXT.splitlines() if line[:1] == '"']
    assert parts == sorted(parts)


def test_plan_that_cannot_be_written_leaves_the_old_file(
    plan: Plan, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    tree = [1, float("nan")]
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(plan, inputs=InputSpec(plan.inputs.leaves, tree)).save(path)
    assert path.read_text() == "old"


def test_what_goes_to_a_file_that_is_open_is_added_to_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    link, closed = tmp_path / "link", 1000
    link.symlink_to("/dev/stdout")
    print("before")
    for path in ("/dev/stdout", "/dev/fd/1", link):
        check_writable(path)
        write_bytes(path, b"made\n")
    print("after")
    assert capfd.readouterr().out == "before\nmade\nmade\nmade\nafter\n"
    assert link.is_symlink()
    for number in (closed, os.open(link.parent, os.O_RDONLY)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            check_writable(f"/dev/fd/{number}")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match=r"none\.json: cannot be read: No such file"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(BadPlan, match=r"cannot be read: Is a directory"):
        Plan.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "p.json: line 1, column 1: wanted JSON: Expecting value"),
        ("[]", "p.json: found a list of 0, wanted a plan (a JSON object)"),
        ("{}", "p.json: version: found null, wanted 1"),
        ('{"version": true}', "p.json: version: found true, wanted 1"),
        ('{"version": 2}', "p.json: version: found 2, wanted 1"),
        (
            '{"version": NaN}',
            "p.json: wanted JSON: found NaN at version, wanted a finite number",
        ),
        (
            '{"a": 1, "a": 2}',
            "p.json: wanted JSON: found the key 'a' twice in one object",
        ),
        (b"\xff\xfe", "p.json: found bytes that are not UTF-8 at 0, wanted JSON"),
        ("[" * 100_000, "p.json: found too many nested brackets"),
        ('{"a": ' * 100_000, "p.json: found too many nested brackets"),
    ],
)
def test_what_is_no_plan_is_refused(
    tmp_path: Path, content: bytes | str, message: str
) -> None:
    assert load_error(tmp_path, content).startswith(message)


def test_huge_integer_is_refused(tmp_path: Path) -> None:
    message = load_error(tmp_path, '{"version": 1' + "0" * 5000 + "}")
    assert message.startswith("p.json: wanted JSON: Exceeds the limit")


def test_nesting_that_json_still_reads_is_refused(tmp_path: Path) -> None:
    deep: Any = {"type": "builtins.tuple", "context": "null", "children_spec": []}
    for _ in range(300):
        deep = {"type": "builtins.tuple", "context": "null", "children_spec": [deep]}
    text = json.dumps(replaced(DATA, ["inputs", "tree"], [1, deep]))
    assert "inputs.tree: found 0 leaves" in load_error(tmp_path, text)
    text = text.replace('"name": "by hand"', '"name": ' + "[" * 900 + "]" * 900)
    assert "p.json: " in load_error(tmp_path, text)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["mesh"], 4, "mesh: found 4, wanted string"),
        (
            ["mesh"],
            "dp=0,",
            'mesh: found "dp=0,", wanted a mesh like dp=2,tp=2, slowest links first',
        ),
        (
            ["mesh"],
            "dp=0",
            "mesh: mesh axis 'dp' has size 0; want an int >= 1",
        ),
        (["microbatches"], 0, "microbatches: found 0, wanted minimum 1"),
        (["nodes", "up/mm/0", "stage"], -1, "nodes.up/mm/0.stage: found -1, wanted "),
        (
            ["nodes", "up/mm/0", "phase"],
            "x",
            'nodes.up/mm/0.phase: found "x", wanted f',
        ),
        (["nodes", "up/mm/0"], {}, "nodes.up/mm/0: the key 'op' is missing"),
        (
            ["tensors"],
            {},
            'plan: unknown key "tensors", wanted one of partita, ',
        ),
        (
            ["nodes", "up/mm/0", "signature", "results", 0],
            "(S(0), Q)",
            "nodes.up/mm/0.signature.results[0]: placement '(S(0), Q)': found ' Q'",
        ),
        (
            ["nodes", "up/mm/0", "signature", "results", 0],
            "(S(0; 1*99999999999), B)",
            "nodes.up/mm/0.signature.results[0]: placement '(S(0; 1*99999999999), B)'",
        ),
        (
            ["parameters", "up.weight", "dtype"],
            "f31",
            "parameters.up.weight.dtype: tensor type 'f31[]' is not of the form",
        ),
        (
            ["predicted", "seconds"],
            10**400,
            "predicted.seconds: int too large",
        ),
        (["search", "gap"], "0", 'search.gap: found "0", wanted number or null'),
        (
            ["boxings", 0, "bytes"],
            63,
            "boxings[0].bytes: found 63, its steps make it 64",
        ),
        (
            ["inputs", "leaves", 1, "constant"],
            [],
            "inputs.leaves[1].constant: found a list, wanted text, a number, true,",
        ),
    ],
)
def test_wrong_value_is_named_with_what_is_wanted(
    path: list[Any], value: Any, message: str
) -> None:
    with pytest.raises(BadPlan) as caught:
        Plan.from_dict(replaced(DATA, path, value))
    assert str(caught.value).startswith(f"plan: {message}")


def test_infinite_number_is_refused(tmp_path: Path) -> None:
    text = TEXT.replace('"gap": 0.0', '"gap": 1e999')
    message = "p.json: wanted JSON: found 1e999 at search.gap, wanted a finite number"
    assert load_error(tmp_path, text) == message


def test_message_about_a_hostile_key_is_one_line() -> None:
    key = "a\nb\x1b[2J"
    with pytest.raises(BadPlan) as caught:
        Plan.from_dict(replaced(DATA, ["nodes", key], {}))
    message = str(caught.value)
    assert message == r"plan: nodes.a\nb\x1b[2J: the key 'op' is missing"


def test_derived_figures_of_a_boxing_may_be_left_out(plan: Plan) -> None:
    data = copy.deepcopy(DATA)
    for key in ("axis", "bytes", "seconds"):
        del data["boxings"][0][key]
    assert Plan.from_dict(data) == plan


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(TEXT) - 3))
def test_truncated_file_is_refused(cut: int, tmp_path_factory: Any) -> None:
    load_error(tmp_path_factory.mktemp("cut"), TEXT[:cut])


def all_paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    below = [found for key, item in items for found in all_paths(item, (*path, key))]
    return [path, *below] if path else below


TEXTS = "|x|(B)|(B, B)|(S(9), B)|f32[]|dp=2|dp=2,tp=99999999|up/mm/0|up/mm/0#7|#|#0"
JUNK = st.sampled_from(
    [
        *TEXTS.split("|"),
        *("\ud800", "\x1b[2J", None, True, -1, 3, 10**30, 1e300),
        *([], {}, [[]], {"": 0}, ["x"]),
    ]
)


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(all_paths(DATA)), junk=JUNK)
def test_any_changed_value_loads_or_is_one_line(
    path: tuple[Any, ...], junk: Any
) -> None:
    plan, message = None, "plan: "
    try:
        plan = Plan.from_dict(replaced(DATA, list(path), junk))
    except BadPlan as error:
        message = str(error)
    assert message.isprintable()
    assert message.startswith("plan: ")
    if plan is not None:
        assert Plan.from_dict(plan.to_dict()) == plan
        assert str(plan).replace("\n", "").isprintable()
        assert len(plan.graph()) == len(plan.nodes) + len(plan.outputs)
