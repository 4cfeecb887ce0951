"""Start ranks on this machine, watch them, and end all of them when one fails.

Each rank is a process of its own with the environment that torchrun gives, forked by a
server that has loaded Partita (fork_server.py). They meet in a store that this process
holds, so no port is guessed. Under torchrun (RANK is set) the ranks are there already,
and the target just runs.

A rank ends by itself when this process goes away, however that happens: it reads
from a pipe whose other end only this process holds.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.compiler.errors import RankFailed
from partita.runtime import doing
from partita.runtime.rank import Report, stacks_path
from partita.runtime.rank_starter import RankStarter, import_path, rank_starter
from partita.runtime.stores import meeting_store
from partita.runtime.target import Target, as_importable, find_target

_POLL_S = 0.02
_GRACE_S = 0.3  # after the first failure seen, for one that came before it


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
        starter = rank_starter()
        pipe, held = os.pipe()
        ranks: list[int] = []
        try:
            for rank in range(num_ranks):
                environment = _environment(rank, num_ranks, store.port, folder)
                ranks.append(starter.start(name, pipe, environment))
            _watch(starter, ranks, folder, timeout_s)
        finally:
            os.close(pipe)
            os.close(held)  # so they end even where the server is gone
            if starter.is_running:
                starter.end(ranks)
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
        "PYTHONPATH": import_path(),
    }


def _watch(
    starter: RankStarter, ranks: Sequence[int], folder: Path, timeout_s: float | None
) -> None:
    """Return when all ranks have ended well; raise when one has not.

    ``ranks`` are their processes.
    """
    started_s = time.monotonic()
    while True:
        codes = _codes(starter, ranks)
        running = [rank for rank, code in enumerate(codes) if code is None]
        ended = ((rank, code) for rank, code in enumerate(codes) if code is not None)
        if not all(_is_well(code, folder, rank) for rank, code in ended):
            time.sleep(_GRACE_S)
            _raise_first_failure(_codes(starter, ranks), folder)
        if not running:
            return
        if timeout_s is not None and time.monotonic() - started_s > timeout_s:
            names = ", ".join(map(str, running))
            raise RankFailed(
                f"rank {names} still ran after {timeout_s} s; all were ended"
            )
        time.sleep(_POLL_S)


def _codes(starter: RankStarter, ranks: Sequence[int]) -> list[int | None]:
    """Return how ranks ended, by rank; ``None`` while one runs."""
    ended = starter.ended()
    return [ended.get(process) for process in ranks]


def _is_well(code: int, folder: Path, rank: int) -> bool:
    return code == 0 and Report.path(folder, rank).exists()


def _report(folder: Path, rank: int) -> Report:
    return pickle.loads(Report.path(folder, rank).read_bytes())


def _raise_first_failure(codes: Sequence[int | None], folder: Path) -> None:
    """Raise the failure that came first; ``codes`` say how ranks ended, by rank.

    A rank that was killed comes before all others: it has no time to show, but what
    others report then is that they have lost it.
    """
    failures: list[tuple[float, int]] = []
    for rank, code in enumerate(codes):
        if code is None or _is_well(code, folder, rank):
            continue
        if not Report.path(folder, rank).exists():
            told = doing.last_told(_doing(folder, rank))
            when = "" if code < 0 else " before its target was done"
            at = told and f", at {told}"
            stacks = _stacks(folder, rank)
            raise RankFailed(f"rank {rank} {_end_of(code)}{when}{at}{stacks}")
        failures.append((_report(folder, rank).time_s, rank))
    _, rank = min(failures)
    report = _report(folder, rank)
    if not report.traceback:
        code = codes[rank] or 0
        end = f"{_end_of(code)} after its target was done"
        raise RankFailed(f"rank {rank} {end}{_stacks(folder, rank)}")
    done = [r for r, code in enumerate(codes) if code is not None]
    left = ", ".join(str(r) for r in done if _left_before(codes, folder, r, report))
    first = left and f", after rank {left} was done and had left"
    raise RankFailed(f"rank {rank} failed{first}:\n{report.traceback}") from _cause(
        report
    )


def _left_before(
    codes: Sequence[int | None], folder: Path, rank: int, failed: Report
) -> bool:
    """Whether a rank had ended well when another failed, which may have missed it."""
    code = codes[rank]
    is_well = code is not None and _is_well(code, folder, rank)
    return is_well and _report(folder, rank).time_s < failed.time_s


def _stacks(folder: Path, rank: int) -> str:
    """Return what to add of a rank that crashed: what its threads were at."""
    path = stacks_path(folder, rank)
    told = path.read_text(errors="replace").strip() if path.exists() else ""
    return told and f":\n{told}"


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
