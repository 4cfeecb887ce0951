"""What others wrote and the page carries is what they published, with its licence."""

import hashlib
import json
from importlib.resources import files

from partita.page.page import LIBRARIES

VENDOR = files("partita.page").joinpath("vendor")
KNOWN = json.loads(VENDOR.joinpath("libraries.json").read_text("utf-8"))
TOLD = {"README.md", "libraries.json"}


def test_every_file_has_its_checksum() -> None:
    wanted = {name: digest for one in KNOWN for name, digest in one["files"].items()}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name not in TOLD
    }
    assert found == wanted


def test_every_library_has_a_version_a_source_and_a_licence() -> None:
    for one in KNOWN:
        assert one["version"] in one["source"]
        assert any(name.startswith("LICENSE") for name in one["files"])
        assert one["version"] in VENDOR.joinpath("README.md").read_text("utf-8")


def test_what_the_page_carries_is_known() -> None:
    names = {name for one in KNOWN for name in one["files"]}
    assert {*LIBRARIES, *(f"{name}.LEGAL.txt" for name in LIBRARIES)} <= names
