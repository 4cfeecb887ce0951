"""Whether processes still run."""

import time
from collections.abc import Iterable
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process has not ended; one that nobody has reaped has."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_ended(processes: Iterable[int]) -> None:
    """Wait for processes that are to end soon."""
    deadline = time.monotonic() + 5
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "processes are left running"
        time.sleep(0.02)
