"""Draw a plan, or two beside each other, as one self-contained page: no network.

The page holds the whole document, packed, and scripts that draw it. What a plan names
is a stranger's text: it stands packed in base64, the scripts make only text nodes of
it, and the page's policy lets no other script or request be.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files

from partita.compiler.collection import collection_paused
from partita.compiler.plan.counterparts import called_as_in
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import mesh_text
from partita.compiler.plan.units import printable
from partita.page.data import page_data

LIBRARIES = ("dagre.min.js",)
"""What stands in ``vendor``, each with its licence in ``NAME.LEGAL.txt``."""

SHARED = (
    "dom.js",
    "model.js",
    "edges.js",
    "layout.js",
    "painter.js",
    "graph.js",
    "details.js",
    "outline.js",
    "search.js",
    "charts.js",
    "timeline.js",
    "tables.js",
    "frame.js",
)
"""The scripts of every page, in the order in which they stand there."""


@collection_paused()
def render_page(plan: Plan) -> str:
    """Return the page of a plan as HTML."""
    return _framed(
        _filled(
            "page.html", tools=_filled("tools.html"), graph=_graph("graph", "Graph")
        ),
        kind="view",
        scripts=(*SHARED, "view.js"),
        start="startView();",
        title=f"Plan of {plan.model.class_name} on {mesh_text(plan)}",
        packed={"plan": pack_json(page_data(plan))},
    )


@collection_paused()
def render_diff_page(a: Plan, b: Plan) -> str:
    """Return the page that shows two plans side by side, as HTML.

    Of one model edited since the first is shown with the names that things have now.
    """
    title = f"{a.model.class_name} on {a.mesh} beside {b.model.class_name} on {b.mesh}"
    if a.model.fingerprint != b.model.fingerprint:
        a, _ = called_as_in(a, b)
    graphs = {f"graph {n}": _graph(f"graph-{n}", f"Graph of {n}") for n in "AB"}
    return _framed(
        _filled("diff.html", tools=_filled("tools.html"), **graphs),
        kind="view diff",
        scripts=(*SHARED, "compare.js", "diff.js"),
        start="startDiff();",
        title=title,
        packed={"a": pack_json(page_data(a)), "b": pack_json(page_data(b))},
    )


def pack_json(data: object) -> str:
    """Return JSON, packed by gzip, as base64, which may stand in any element.

    >>> len(pack_json({"key": "</script>"})) % 4, "<" in pack_json("</script>")
    (0, False)
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _framed(
    graphs: str,
    *,
    kind: str,
    scripts: tuple[str, ...],
    start: str,
    title: str,
    packed: Mapping[str, str],
) -> str:
    """Return a page: its graphs in the frame that all pages have.

    Args:
        graphs: HTML, the part of the page that is its own.
        kind: classes of the body.
        scripts: those of the page, in order.
        start: what begins to draw.
        title: as text.
        packed: the data that the scripts read, by the ids of their elements.
    """
    style = _asset("page.css")
    script = "\n".join(
        [*map(_library, LIBRARIES), *(_asset(f"script/{s}") for s in scripts), start]
    )
    ids = ["what"] if len(packed) == 1 else [f"what-{name.upper()}" for name in packed]
    page = _filled(
        "frame.html",
        policy=f"default-src 'none'; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'",
        title=html.escape(printable(title)),
        kind=kind,
        what="".join(f'<p id="{name}" class="quiet"></p>' for name in ids),
        graphs=graphs,
        plans="plan" if len(packed) == 1 else "plans",
        packed="\n".join(
            f'<script type="application/octet-stream" id="{name}">{data}</script>'
            for name, data in packed.items()
        ),
        style=style,
        script=script,
    )
    return f"{page}\n"


def _graph(name: str, label: str) -> str:
    return _filled("graph.html", id=name, name=label)


def _filled(asset: str, **parts: str) -> str:
    """Return an asset with its ``{{part}}`` put in, without the last end of line."""
    pieces = _asset(asset).removesuffix("\n").split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:  # in one go, so that nothing put in is looked at again
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _library(name: str) -> str:
    """Return a library behind its licence, without the address of its source map."""
    lines = _asset(f"vendor/{name}").splitlines()
    code = [line for line in lines if not line.startswith("//# sourceMappingURL=")]
    return "\n".join([_asset(f"vendor/{name}.LEGAL.txt"), *code])


def _asset(name: str) -> str:
    return files("partita.page").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
