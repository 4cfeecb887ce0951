"""Draw a plan as one self-contained page: no network, no dependencies.

The page holds the whole document as JSON and a script that draws it. What a plan
names is a stranger's text: it stands escaped in the JSON, the script makes only text
nodes of it, and the page's policy lets no other script or request be.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files

from partita.compiler.plan.plan import Plan


def render_page(plan: Plan) -> str:
    """Return the page as HTML."""
    style, script = _asset("page.css"), _asset("page.js")
    parts = {
        "policy": (
            f"default-src 'none'; style-src '{_hash(style)}'; "
            f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
        ),
        "title": html.escape(f"Plan of {plan.model.class_name} on {plan.mesh}"),
        "style": style,
        "plan": embed_json(plan.to_dict()),
        "script": script,
    }
    pieces = _asset("page.html").split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:  # in one go, so that nothing put in is looked at again
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def embed_json(data: object) -> str:
    r"""Return JSON that may stand in a script element.

    >>> embed_json("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return files("partita.page").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
