"""Without a browser, the tests that need one fail: they do not pass unseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser import find_chromium


def test_no_chromium_fails_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception) as caught:
        find_chromium(tmp_path / "none")
    assert str(caught.value).startswith("no Chromium: looked for chromium, ")
    assert "tools/setup_browser.sh installs one" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_playwright_s_own_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    own = tmp_path / "own"
    own.touch()
    assert find_chromium(own) == str(own)
