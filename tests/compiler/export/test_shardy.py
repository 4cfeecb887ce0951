from __future__ import annotations

import re

import pytest
from tests.compiler.export.hostile import NAME

from partita.compiler.export.shardy import comment_of, quoted, sharding, write_shardy
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.plan import Plan

# The grammar of what is written, of MLIR's and Shardy's as far as it is used.
STRING = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\[0-9A-F]{2})*"'
AXES = rf"\{{(?:{STRING}(?:, {STRING})*)?\}}"
SHARDING = rf"#sdy\.sharding<@\w+, \[(?:{AXES}(?:, {AXES})*)?\](?:, unreduced={AXES})?>"
VALUE = re.compile(rf"  ({STRING}) = ({SHARDING})(,?)(?:  // in the plan [^\n\"]*)?")
MESH = re.compile(rf"  sdy\.mesh @\w+ = <\[{STRING}=\d+(?:, {STRING}=\d+)*\]>")


def parsed(text: str) -> dict[str, str]:
    """Return the sharding of every value; fail where the text is none."""
    head, *lines = text.splitlines()
    assert head == "module attributes {partita.values = {"
    end = lines.index("}} {")
    found: dict[str, str] = {}
    for number, line in enumerate(lines[:end]):
        match = VALUE.fullmatch(line)
        assert match is not None, line
        assert bool(match[3]) == (number < end - 1)
        found[unquoted(match[1])] = match[2]
    assert all(MESH.fullmatch(line) for line in lines[end + 1 : -1])
    assert lines[-1] == "}"
    return found


def unquoted(text: str) -> str:
    pieces = re.findall(r"\\[0-9A-F]{2}|.", text[1:-1])
    codes = (int(p[1:], 16) if len(p) == 3 else ord(p) for p in pieces)
    return bytes(codes).decode("utf-8", "surrogatepass")


def test_every_value_has_its_line(small: Plan) -> None:
    found = parsed(write_shardy(small))
    assert set(found) == {*small.nodes, "max.dim/0#1"}
    assert found["down/mm/0"] == (
        '#sdy.sharding<@stage0, [{"dp"}, {}], unreduced={"tp"}>'
    )
    assert found["up/mm/0"] == '#sdy.sharding<@stage0, [{"dp"}, {"tp"}]>'
    assert '  sdy.mesh @stage0 = <["dp"=2, "tp"=2]>\n' in write_shardy(small)


def test_stages_have_meshes_of_their_own(staged: Plan) -> None:
    text = write_shardy(staged)
    found = parsed(text)
    assert all(f"<@stage{n.stage}, " in found[k] for k, n in staged.nodes.items())
    assert text.count("sdy.mesh") == 2


def test_hostile_names_stay_in_their_quotes(hostile: Plan) -> None:
    assert f"{NAME}/mm/0" in parsed(write_shardy(hostile))
    assert unquoted(quoted(NAME)) == NAME


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        ("(S(0), S(0))", '#sdy.sharding<@m, [{"a", "b"}, {}]>'),
        ("(B, B)", "#sdy.sharding<@m, [{}, {}]>"),
        ("(P, P)", '#sdy.sharding<@m, [{}, {}], unreduced={"a", "b"}>'),
    ],
)
def test_shardings(placement: str, text: str) -> None:
    assert sharding(Placement.parse(placement), 2, Mesh(a=2, b=2), "m") == text


def test_what_shardy_cannot_say_is_commented() -> None:
    assert comment_of(Placement.parse("(S(1; 4|4|2), B)")) == (
        "  // in the plan (S(1; 4|4|2), B)"
    )
    assert comment_of(Placement.parse("(P(max), B)")) == "  // in the plan (P(max), B)"
    assert comment_of(Placement.parse("(P, S(0))")) == ""
