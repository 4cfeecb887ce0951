"""Files of JSON are read strictly, and what is wrong with them is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.compiler.errors import BadOptions, BadPlan, PartitaError
from partita.compiler.json_file import read_json


@pytest.mark.parametrize("refusal", [BadOptions, BadPlan])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "line 1, column 2: wanted JSON: Expecting property name"),
        (b"\xff", "found bytes that are not UTF-8 at 0, wanted JSON"),
        (b"[" * 100_000, "found too many nested brackets"),
        (b'{"a": 1, "a": 2}', "wanted JSON: found the key 'a' twice in one object"),
        (b"NaN", "wanted JSON: found NaN, wanted a finite number"),
        (
            b'{"a": [1, {"b": -1e999}]}',
            "wanted JSON: found -1e999 at a[1].b, wanted a finite number",
        ),
        (
            b'{"a\\nb": ' + b"9" * 400 + b".0}",
            f"wanted JSON: found {'9' * 57}... at a\\nb, wanted a finite number",
        ),
    ],
)
def test_what_is_wrong_is_told(
    content: bytes, message: str, refusal: type[PartitaError], tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(refusal) as raised:
        read_json(path, refusal)
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadOptions, match=r"a\.json: cannot be read: No such file"):
        read_json(tmp_path / "a.json", BadOptions)


def test_what_is_right_is_read_with_a_mark_of_its_bytes_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1.5, null]}', encoding="utf-8-sig")
    assert read_json(path, BadPlan) == ({"a": [1.5, None]}, str(path))
