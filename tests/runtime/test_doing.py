"""What a rank said last, read by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.runtime.doing import VARIABLE, last_told, telling


def test_the_last_word_is_there_until_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "doing"
    monkeypatch.setenv(VARIABLE, str(path))
    with telling() as tell:
        tell("a long thing that is done first")
        tell("1F0")
        assert last_told(path) == "1F0"
    assert last_told(path) == ""


def test_a_failure_leaves_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "doing"
    monkeypatch.setenv(VARIABLE, str(path))

    def fail() -> None:
        with telling() as tell:
            tell("0B3")
            raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        fail()
    assert last_told(path) == "0B3"


def test_nobody_listens_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with telling() as tell:
        tell("1F0")
