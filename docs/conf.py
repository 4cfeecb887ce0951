"""How the site of the docs is built: ``make docs``. It needs no network."""

import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

project = "Partita"
copyright = "the authors of Partita"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "commands_directive",
]
html_theme = "furo"
html_title = "Partita"
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 3
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True


def short_signature(
    _app: Sphinx,
    what: str,
    _name: str,
    found: Any,
    _options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Return a dataclass's signature as names alone: its attributes are described."""
    if what != "class" or not is_dataclass(found) or "__init__" not in vars(found):
        return signature, returns
    names = [field.name + _default(field) for field in fields(found) if field.init]
    return f"({', '.join(names)})", returns


def _default(field: Field[Any]) -> str:
    return "" if field.default is field.default_factory is MISSING else "=..."


def setup(app: Sphinx) -> None:
    """Shorten signatures."""
    app.connect("autodoc-process-signature", short_signature)
