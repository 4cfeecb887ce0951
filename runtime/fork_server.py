"""A process that has loaded Partita and forks ranks, so that each starts at once.

Loading PyTorch and Partita takes seconds of a core, for each rank of each launch; the
server loads them once, with what PyTorch leaves until a model is traced or an optimizer
made, as every rank that trains does, and those modules of Partita that its launcher has
loaded. It computes nothing and starts no thread, as a process that forks must. What it
has loaded stays out of the garbage collector's sight: every full collection of a rank
would walk through it and so copy its memory.

Source: Python's manual, "gc.freeze".

Between a server and its launcher: the launcher sends a request, what it hands over with
it follows, and the server replies. When the launcher is gone the server ends.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import torch

from partita.compiler.capture.torch_private import load_dynamo
from partita.runtime.rank import main


@dataclass(frozen=True, slots=True)
class Start:
    """Asks for a rank; the reply is the number of its process.

    It is followed by descriptors: standard input, output and error, and the pipe that
    ends with the launcher.

    Attributes:
        folder: where the rank's target lies.
        environment: the rank's.
        path: where it imports from.
        cwd: where it runs.
        modules: of Partita that the launcher has loaded.
    """

    folder: str
    environment: Mapping[str, str]
    path: Sequence[str]
    cwd: str
    modules: Sequence[str]


@dataclass(frozen=True, slots=True)
class Ended:
    """Asks which ranks have ended; the reply is how, by process.

    That is its exit code, or minus the signal that it was killed by.
    """


@dataclass(frozen=True, slots=True)
class End:
    """Asks to end ranks and all that they have started; the reply comes when it is."""

    processes: Sequence[int]


HANDED = 4
"""So many descriptors follow a ``Start``."""


def serve(descriptor: int) -> None:
    """Carry out a launcher's requests until it is gone; as a rank, be that instead."""
    load_dynamo()
    gc.collect()
    gc.freeze()
    tried: set[str] = set()
    launcher = Connection(descriptor)
    running: set[int] = set()
    while True:
        try:
            request = launcher.recv()
            if isinstance(request, Start):
                handed = [recv_handle(launcher) for _ in range(HANDED)]
                _load(request, tried)
                process = os.fork()
                if process == 0:
                    break
                _started(process, handed)
                running.add(process)
                launcher.send(process)
            elif isinstance(request, Ended):
                launcher.send(_ended(running))
            else:
                assert isinstance(request, End)
                _end(request.processes)
                running.difference_update(request.processes)
                launcher.send(None)
        except (EOFError, ConnectionError):
            os._exit(0)  # it has nothing to end in order, and its launcher waits
    launcher.close()
    _be_rank(request, handed)


def _load(start: Start, tried: set[str]) -> None:
    """Load what a rank's launcher has loaded, from where the rank would, each once."""
    new = [name for name in start.modules if name not in tried | sys.modules.keys()]
    if not new:
        return
    sys.path[:] = start.path
    for name in new:
        tried.add(name)
        with suppress(Exception):  # the rank that needs it will say so
            import_module(name)
    gc.collect()
    gc.freeze()


def _started(process: int, handed: Sequence[int]) -> None:
    """Let go of what a rank was handed, when it has a process group."""
    os.setpgid(process, process)  # it does so too: who is first is not known
    for own in handed:
        os.close(own)


def _be_rank(start: Start, handed: Sequence[int]) -> None:
    """Become the process that would have been started for a rank, and run its target.

    A process group of its own: it is ended with all that it has started.
    """
    os.setpgid(0, 0)
    *streams, pipe = handed
    for number, own in enumerate(streams):
        os.dup2(own, number)
        os.close(own)
    assert isinstance(sys.stdout, TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    os.chdir(start.cwd)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path[:] = start.path
    # OpenMP read how many threads it is to have when the server loaded it.
    torch.set_num_threads(int(start.environment["OMP_NUM_THREADS"]))
    main(start.folder, pipe)


def _ended(processes: Iterable[int]) -> dict[int, int]:
    """Return how processes ended.

    They are left unreaped, so that their numbers stay their own.
    """
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    found: dict[int, int] = {}
    for process in processes:
        end = os.waitid(os.P_PID, process, options)
        if end is not None:
            has_left = end.si_code == os.CLD_EXITED
            found[process] = end.si_status if has_left else -end.si_status
    return found


def _end(processes: Iterable[int]) -> None:
    for process in processes:
        os.killpg(process, signal.SIGKILL)
    for process in processes:
        os.waitpid(process, 0)
