"""The public names: found when asked for, so that a rank loads what it runs alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import partita as pt

_RUNS_A_PLAN = """
import sys
import partita as pt
assert not any(name.startswith("partita.") for name in sys.modules)
pt.compile, pt.parallelize, pt.Plan
print(*sys.modules)
"""

_SEARCH = ("partita.planning", "partita.one_mesh", "partita.pipelines.pipeline_search")


def loaded_to_run() -> set[str]:
    """Return the modules of a process that has asked for what runs a plan."""
    run = [sys.executable, "-c", _RUNS_A_PLAN]
    shown = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return {*shown.split()}


def test_a_rank_loads_nothing_of_the_search() -> None:
    loaded = loaded_to_run()
    assert "partita.runtime.program" in loaded
    assert loaded.isdisjoint((*_SEARCH, "networkx", "highspy", "jsonschema"))


@pytest.mark.parametrize("name", pt.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert name in dir(pt)
    assert getattr(pt, name) is getattr(pt, name)


def test_another_name_is_an_error_of_the_usual_kind() -> None:
    with pytest.raises(AttributeError, match="module 'partita' has no attribute 'run'"):
        _ = getattr(pt, "run")  # noqa: B009
    assert not hasattr(pt, "nothing")
