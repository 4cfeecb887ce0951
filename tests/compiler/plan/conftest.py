"""The small plan, and the folder of its builder on the path."""

import sys
from pathlib import Path

import pytest

from partita.compiler.plan.plan import Plan

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def plan() -> Plan:
    from small_plan import small_plan

    return small_plan()
