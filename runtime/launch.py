"""Start ranks on this machine, watch them, and end all of them when one fails.

Each rank is a process of its own with the environment that torchrun gives. They meet
in a store that this process holds, so no port is guessed. Under torchrun (RANK is
set) the ranks are there already, and the target just runs.

A rank ends by itself when this process goes away, however that happens: it reads
from a pipe whose other end only this process holds.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from partita.compiler.errors import RankFailed
from partita.runtime import doing
from partita.runtime.rank import Report
from partita.runtime.stores import meeting_store
from partita.runtime.target import Target, as_importable, find_target

_POLL_S = 0.02
_GRACE_S = 0.3  # after the first failure seen, for one that came before it

Rank = subprocess.Popen[bytes]


def launch(
    target: Target,
    num_ranks: int,
    args: Sequence[Any] = (),
    timeout_s: float | None = None,
) -> list[Any]:
    """Run ``target(*args)`` on ``num_ranks`` local ranks; return their results by rank.

    Under torchrun it runs in this process, and the one result is this rank's.

    Raises:
        RankFailed: with the traceback of the rank that failed first; its cause is that
            rank's exception, where it can be pickled.
    """
    if "RANK" in os.environ:
        return [find_target(target)(*args)]
    with tempfile.TemporaryDirectory(prefix="partita-") as name:
        folder = Path(name)
        payload = pickle.dumps((as_importable(target), tuple(args)))
        (folder / "payload").write_bytes(payload)
        store = meeting_store()
        pipe, held = os.pipe()
        ranks: list[Rank] = []
        try:
            for rank in range(num_ranks):
                environment = _environment(rank, num_ranks, store.port, folder)
                ranks.append(_start(folder, pipe, environment))
            _watch(ranks, folder, timeout_s)
        finally:
            _end(ranks)
            os.close(pipe)
            os.close(held)
        return [_report(folder, rank).result for rank in range(num_ranks)]


def _environment(rank: int, num_ranks: int, port: int, folder: Path) -> dict[str, str]:
    """Return what ``env://`` reads, and the ways to import what this process can."""
    num_threads = max(1, (os.cpu_count() or 1) // num_ranks)
    defaults = {"OMP_NUM_THREADS": str(num_threads)}
    if Path("/sys/class/net/lo").exists():
        defaults["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine
    return {
        **defaults,
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the launcher's
        doing.VARIABLE: str(_doing(folder, rank)),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _start(folder: Path, pipe: int, environment: dict[str, str]) -> Rank:
    # Imported by its name, not run with -m, so that a pickled report finds its class.
    code = "import sys; from partita.runtime.rank import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(folder), str(pipe)]
    # A process group of its own: it is ended with all that it has started.
    return subprocess.Popen(command, env=environment, pass_fds=(pipe,), process_group=0)


def _watch(ranks: Sequence[Rank], folder: Path, timeout_s: float | None) -> None:
    """Return when all ranks have ended well; raise when one has not."""
    started_s = time.monotonic()
    running = set(range(len(ranks)))
    while running:
        ended = {rank for rank in running if _exit_code(ranks[rank]) is not None}
        if any(not _is_well(ranks[rank], folder, rank) for rank in ended):
            time.sleep(_GRACE_S)
            _raise_first_failure(ranks, folder)
        running -= ended
        if timeout_s is not None and time.monotonic() - started_s > timeout_s:
            names = ", ".join(map(str, sorted(running)))
            raise RankFailed(
                f"rank {names} still ran after {timeout_s} s; all were ended"
            )
        if running:
            time.sleep(_POLL_S)


def _exit_code(process: Rank) -> int | None:
    """Return how a rank ended (minus the signal), ``None`` while it runs.

    The process is left unreaped, so that its number stays its own.
    """
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _is_well(process: Rank, folder: Path, rank: int) -> bool:
    return _exit_code(process) == 0 and Report.path(folder, rank).exists()


def _report(folder: Path, rank: int) -> Report:
    return pickle.loads(Report.path(folder, rank).read_bytes())


def _raise_first_failure(ranks: Sequence[Rank], folder: Path) -> None:
    """Raise the failure that came first.

    A rank that was killed comes before all others: it has no time to show, but what
    others report then is that they have lost it.
    """
    failures: list[tuple[float, int]] = []
    for rank, process in enumerate(ranks):
        code = _exit_code(process)
        if code is None or _is_well(process, folder, rank):
            continue
        if not Report.path(folder, rank).exists():
            told = doing.last_told(_doing(folder, rank))
            when = "" if code < 0 else " before its target was done"
            at = told and f", at {told}"
            raise RankFailed(f"rank {rank} {_end_of(code)}{when}{at}")
        failures.append((_report(folder, rank).time_s, rank))
    _, rank = min(failures)
    report = _report(folder, rank)
    if not report.traceback:
        code = _exit_code(ranks[rank]) or 0
        raise RankFailed(f"rank {rank} {_end_of(code)} after its target was done")
    raise RankFailed(f"rank {rank} failed:\n{report.traceback}") from _cause(report)


def _doing(folder: Path, rank: int) -> Path:
    return folder / f"doing-{rank}"


def _end_of(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"left with exit code {code}"


def _cause(report: Report) -> BaseException | None:
    try:
        return pickle.loads(report.error)
    except Exception:
        return None


def _end(ranks: Iterable[Rank]) -> None:
    """End every rank and what it has started."""
    for process in ranks:
        os.killpg(process.pid, signal.SIGKILL)
    for process in ranks:
        process.wait()
