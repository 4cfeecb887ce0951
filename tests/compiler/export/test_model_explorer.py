"""The form is that of graph_builder.py of ai-edge-model-explorer 0.1.34."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from partita.compiler.export.model_explorer import write_model_explorer
from partita.compiler.plan.plan import Plan

# Fields of the records there: those that must be given, those that may be.
NODE = {"id", "label"}, {
    "namespace", "attrs", "incomingEdges", "outputsMetadata", "style",
}  # fmt: skip
EDGE = {"sourceNodeId"}, {"sourceNodeOutputId", "targetNodeInputId"}
OVERLAY = {"name", "edgeColor"}, {"edges", "edgeWidth"}

# Without notebooks and readers of other formats.
NEEDED = (
    "ai-edge-model-explorer-adapter dacite flask packaging portpicker requests "
    "termcolor typing-extensions watchdog"
)
EXPLORER = "ai-edge-model-explorer==0.1.34"

BARE = "--no_open_in_browser", "--skip_health_check"

OPENS_IN_MS = 60_000.0  # its server starts meanwhile


def fits(record: dict[str, Any], fields: tuple[set[str], set[str]]) -> bool:
    needed, allowed = fields
    return needed <= set(record) <= needed | allowed


@pytest.mark.parametrize("name", ["small", "hostile", "staged"])
def test_it_has_the_form_of_a_graph_collection(
    name: str, request: pytest.FixtureRequest
) -> None:
    plan: Plan = request.getfixturevalue(name)
    made = json.loads(write_model_explorer(plan))
    assert set(made) == {"label", "graphs"}  # what the page's loader asks for
    (graph,) = made["graphs"]
    ids = [node["id"] for node in graph["nodes"]]
    assert len(set(ids)) == len(ids)
    for node in graph["nodes"]:
        assert fits(node, NODE)
        for edge in node["incomingEdges"]:
            assert fits(edge, EDGE)
            assert edge["sourceNodeId"] in ids
        pairs = [
            *node["attrs"],
            *(p for o in node["outputsMetadata"] for p in o["attrs"]),
        ]
        assert all(isinstance(pair["value"], str) for pair in pairs)
    (data,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    assert data["type"] == "edge_overlays"
    for overlay in data["overlays"]:
        assert fits(overlay, OVERLAY)
        assert overlay["edges"]
        assert all(
            {e["sourceNodeId"], e["targetNodeId"]} <= set(ids) for e in overlay["edges"]
        )


def test_overlays_are_the_plans_collectives(small: Plan) -> None:
    (graph,) = json.loads(write_model_explorer(small))["graphs"]
    (data,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    edges = {overlay["name"]: len(overlay["edges"]) for overlay in data["overlays"]}
    assert edges == {"all_reduce dp": 3, "all_reduce tp": 2, "slice dp": 2}
    (mean,) = [n for n in graph["nodes"] if n["id"] == "mean/0"]
    (result,) = mean["outputsMetadata"]
    assert {"key": "placement", "value": "(P(sum), B)"} in result["attrs"]


def wait_until_it_listens(port: int) -> None:
    """Return once a server takes connections; it says that it runs a little before."""
    for _ in range(300):
        try:
            socket.create_connection(("localhost", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program of the explorer, in an environment that is thrown away."""
    folder = tmp_path_factory.mktemp("explorer")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for wanted in (NEEDED.split(), ["--no-deps", EXPLORER]):
        done = subprocess.run(
            [str(folder / "bin" / "pip"), "install", "-q", *wanted],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"no explorer: {done.stderr.strip()[-200:]}"
    return folder / "bin" / "model-explorer"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "hostile", "staged"])
def test_the_explorer_shows_nodes_and_collectives(
    name: str,
    request: pytest.FixtureRequest,
    explorer: Path,
    browser: Browser,
    tmp_path: Path,
) -> None:
    made = write_model_explorer(request.getfixturevalue(name))
    (graph,) = json.loads(made)["graphs"]
    (data,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    path = tmp_path / "plan.json"
    path.write_text(made)
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        [str(explorer), str(path), "--port", port, *BARE],
        stdout=subprocess.PIPE,
        text=True,
    )
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        assert server.stdout is not None
        next(line for line in server.stdout if "to stop" in line)
        wait_until_it_listens(int(port))
        models = quote(json.dumps({"models": [{"url": str(path)}]}))
        page.goto(f"http://localhost:{port}/?data={models}")
        page.wait_for_selector("edge-overlays-dropdown", timeout=OPENS_IN_MS)
        told = page.inner_text("body")
        assert f"{len(graph['nodes'])} nodes" in told
        assert " ".join(graph["id"].split()) in " ".join(told.split())
        page.locator("edge-overlays-dropdown").click()
        page.wait_for_selector("text=collectives")
        listed = page.locator(".cdk-overlay-container").inner_text().split("\n")
        wanted = [overlay["name"] for overlay in data["overlays"]]
        assert [line for line in listed if line in wanted] == wanted
        assert errors == []
    finally:
        page.close()
        server.kill()
        server.communicate()
