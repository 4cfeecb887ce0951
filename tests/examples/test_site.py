"""The site of the docs: it builds without a warning, and loads only what it holds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.examples.documented import ROOT

import partita as pt
from partita.cli.main import COMMANDS

FETCHED = {"src", "srcset", "data", "poster", "action"}


class Seen(HTMLParser):
    """Collects the ids of a page and what a browser would fetch for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(path.read_text("utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in FETCHED or (name == "href" and tag == "link"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def recipe() -> list[str]:
    """Return the command of ``make docs``."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    found = re.search(r"^docs: .*\n\t@(.*)$", makefile, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace("$(PY)", sys.executable))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built by the command of ``make docs``."""
    folder = tmp_path_factory.mktemp("site")
    *command, target = recipe()
    assert target == "build/docs"
    assert "--fail-on-warning" in command
    ran = subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Seen]:
    return {path.stem: Seen(path) for path in site.rglob("*.html")}


def test_every_page_is_there(pages: dict[str, Seen]) -> None:
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert written <= set(pages)
    assert "search" in pages  # the site's own


def test_pages_fetch_nothing_from_elsewhere(site: Path, pages: dict[str, Seen]) -> None:
    for name, page in pages.items():
        assert page.fetched
        for address in page.fetched:
            assert not re.match(r"(\w+:)?//", address), (name, address)
            own = site / address.partition("?")[0].partition("#")[0]
            assert own.exists(), (name, address)
    for path in site.rglob("*.css"):
        style = path.read_text("utf-8")
        assert not re.search(r"(url\(|@import)\s*['\"]?(\w+:)?//", style), path


def test_every_public_name_is_described(pages: dict[str, Seen]) -> None:
    assert {f"partita.{name}" for name in pt.__all__} <= pages["api"].ids


def test_every_command_is_described(pages: dict[str, Seen]) -> None:
    page = pages["commands"]
    for command in COMMANDS:
        assert f"partita-{command.name}" in page.ids
        assert f"usage: partita {command.name}" in page.text
        assert command.example in page.text


def test_how_to_extend_comes_from_the_contributing_page(pages: dict[str, Seen]) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    told = page.partition("extending: begins -->")[2].partition("<!-- extending")[0]
    heads = re.findall(r"^## (.*)$", told, re.MULTILINE)
    assert [head.split()[-1] for head in heads] == [
        "signature", "pass", "schedule", "exporter", "profile"
    ]  # fmt: skip
    assert all(head in pages["extending"].text for head in heads)
