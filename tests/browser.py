"""A real Chromium without a window, and pages in it that must not complain."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Of the program, where a package of the system installed it."""

OPENS_IN_MS = 60_000.0  # far more than it takes: a page that hangs is to fail, not wait

ACTS_IN_MS = 10_000.0

WIDTH, HEIGHT = 1500, 1000


def find_chromium(own: Path) -> str:
    """Return the path of a Chromium: one of the system's, or ``own``, Playwright's.

    Fails the test where there is none.
    """
    for path in (*map(shutil.which, NAMES), str(own) if own.exists() else None):
        if path is not None:
            return path
    pytest.fail(
        f"no Chromium: looked for {', '.join(NAMES)} and {own}; tools/setup_browser.sh "
        "installs one, or install your system's package chromium",
        pytrace=False,
    )


@contextmanager
def started_browser() -> Generator[Browser]:
    """Start a browser, and end it."""
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        # Its sandbox needs rights that containers do not give; it opens our pages only.
        browser = playwright.chromium.launch(
            executable_path=find_chromium(own), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


class Watched:
    """What a page said and asked for."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("request", lambda request: self.requests.append(request.url))


def open_html(
    browser: Browser, html: str, path: Path, *, is_dark: bool = False
) -> tuple[Page, Watched]:
    """Write a page to a file and open it from there, until it is drawn."""
    path.write_text(html, "utf-8")
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if is_dark else "light",
    )
    page.set_default_timeout(ACTS_IN_MS)
    watched = Watched(page)
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", timeout=OPENS_IN_MS)
    return page, watched
