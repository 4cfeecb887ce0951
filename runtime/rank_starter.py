"""Start ranks by a server that has loaded what they need, and hear how they ended.

The server stays for later launches, as long as this process does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

from partita.compiler.errors import RankFailed
from partita.runtime.fork_server import End, Ended, Start

_READ_AS_LOADED = (
    *("GLIBC", "LD_", "MALLOC"),
    *("GOMP", "KMP", "MKL", "OMP", "OPENBLAS"),
    *("NETWORKX", "PYTHON", "PYTORCH", "TORCH"),
)
"""How variables begin that libraries, Python or its packages read as they load."""

_NUM_THREADS = "OMP_NUM_THREADS"
"""Read so too; but a rank sets it for itself."""


class RankStarter:
    """A fork server, and the ranks that it has started."""

    def __init__(self) -> None:
        own, given = socket.socketpair()
        # Imported by its name, not run with -m, so that a pickled request finds its
        # class. One thread: it forks, and computes nothing.
        code = "import sys; sys.path = [*filter(None, sys.path)]; "
        code += "from partita.runtime.fork_server import serve; "
        command = [sys.executable, "-c", code + "serve(int(sys.argv[1]))"]
        with given:
            self._server = subprocess.Popen(
                [*command, str(given.fileno())],
                env={**os.environ, _NUM_THREADS: "1", "PYTHONPATH": import_path()},
                pass_fds=(given.fileno(),),
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._connection = Connection(own.detach())
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, _close, self._connection, self._server)

    def start(self, folder: str, pipe: int, environment: Mapping[str, str]) -> int:
        """Start a rank, and return its process.

        Args:
            folder: where its target lies.
            pipe: it ends itself when the other end is gone.
            environment: its own.
        """
        path = [os.path.abspath(path) for path in sys.path]
        request = Start(folder, dict(environment), path, os.getcwd(), _own_modules())
        with open(os.devnull, "r+b") as nothing:
            streams = [at if _is_open(at) else nothing.fileno() for at in range(3)]
            return self._asked(request, (*streams, pipe))

    def ended(self) -> dict[int, int]:
        """Return the ranks that have ended: exit codes, or minus the signal."""
        return self._asked(Ended())

    def end(self, processes: Sequence[int]) -> None:
        """End ranks and all that they have started."""
        self._asked(End(tuple(processes)))

    @property
    def is_running(self) -> bool:
        """Whether the server is there to be asked."""
        return not self._connection.closed and self._server.poll() is None

    def _asked(self, request: Start | Ended | End, handed: Sequence[int] = ()) -> Any:
        try:
            with self._lock:
                self._connection.send(request)
                for descriptor in handed:
                    send_handle(self._connection, descriptor, self._server.pid)
                return self._connection.recv()
        except BaseException as error:
            # After half a request no reply is known to be of the next one.
            self._connection.close()
            if not isinstance(error, EOFError | OSError):
                raise
            code = self._server.wait()
            raise RankFailed(
                f"the process that starts ranks has ended with exit code {code}"
            ) from error


@dataclass
class _Kept:
    """The last starter, of which process, and what was read as its server loaded."""

    process: int = 0
    loaded: Mapping[str, str] = field(default_factory=dict[str, str])
    starter: RankStarter | None = None

    def now(self) -> RankStarter:
        """Return it, or another one where it is of no use."""
        process = os.getpid()
        loaded = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_READ_AS_LOADED) and name != _NUM_THREADS
        }
        starter = self.starter
        is_same = (self.process, self.loaded) == (process, loaded)
        if starter is None or not (is_same and starter.is_running):
            if starter is not None:
                starter.close()
            starter = RankStarter()
            self.process, self.loaded, self.starter = process, loaded, starter
        return starter


@cache
def _kept() -> _Kept:
    """Return the one of this process."""
    return _Kept()


def rank_starter() -> RankStarter:
    """Return what starts this process's ranks; it is kept for the next launch."""
    return _kept().now()


def import_path() -> str:
    """Return the ways to import what this process can, for processes it starts."""
    return os.pathsep.join(path for path in sys.path if path)


def _own_modules() -> list[str]:
    """Return Partita's own modules that are loaded, of the top level alone.

    They import what they need of the others: plots and the like are nothing for ranks.
    """
    own = f"{__name__.partition('.')[0]}."
    loaded = list(sys.modules)  # other threads may load more meanwhile
    return [name for name in loaded if name.startswith(own) and name.count(".") == 1]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _close(connection: Connection, server: subprocess.Popen[bytes]) -> None:
    connection.close()
    server.wait()
