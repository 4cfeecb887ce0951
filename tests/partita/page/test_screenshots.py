"""The pictures of the docs can be taken, and are those that the docs show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.partita.page.screenshots import take

DOCS = Path(__file__).parents[3] / "docs"
MOST_BYTES = 300 * 1024


def shown() -> list[str]:
    """Return the names of the pictures in docs/page.md, in their order."""
    return re.findall(r"!\[[^]]+\]\(([^)]+)\)", (DOCS / "page.md").read_text("utf-8"))


def test_docs_have_the_pictures_that_they_show_and_no_others() -> None:
    assert {path.name for path in DOCS.glob("page-*.png")} == set(shown())
    assert all((DOCS / name).stat().st_size <= MOST_BYTES for name in shown())


@pytest.mark.slow
def test_pictures_are_taken(browser: Browser, tmp_path: Path) -> None:
    taken = [*take(browser, tmp_path)]
    assert sorted(path.name for path in taken) == sorted(shown())
    assert all(path.stat().st_size <= MOST_BYTES for path in taken)
