"""Run a function in a child process, since experiments may end the one they run in.

A kernel that is handed shards of sizes that do not go together may write where it must
not. What that breaks is a copy of this process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # of Linux's prctl: a signal for when the parent is gone


class ChildFailed(RuntimeError):
    """A child process crashed, or took longer than it was given."""


def run_in_child(function: Callable[[], T], timeout_s: float) -> T:
    """Return what ``function`` returns, computed in a forked copy of this process.

    Args:
        function: computes it; what it returns must be picklable.
        timeout_s: after which it is given up.

    Raises:
        ChildFailed: when the copy crashes, raises or is given up.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(function, sender), daemon=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the copy says again what waits there
    with warnings.catch_warnings():
        # The copy has none of the other threads and uses none of its own: see _work.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sender.close()
    try:
        if not receiver.poll(timeout_s):
            raise ChildFailed(f"no answer after {timeout_s:g} s")
        succeeded, value = receiver.recv()
    except EOFError as error:
        process.join()
        raise ChildFailed(f"ended by {_reason(process.exitcode)}") from error
    finally:
        process.kill()
        process.join()
        receiver.close()
    if not succeeded:
        raise ChildFailed(str(value))
    return value


def _reason(code: int | None) -> str:
    return signal.Signals(-code).name if code and code < 0 else f"exit code {code}"


def _work(function: Callable[[], Any], sender: Connection) -> None:
    _end_with_parent()
    torch.set_num_threads(1)  # OpenMP's threads are not copied
    # What a crash prints is of no use to anyone: who started this is told how it ended.
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        answer = True, function()
    except Exception as error:
        answer = False, f"{type(error).__name__}: {error}"
    sender.send(answer)
    sender.close()


def _end_with_parent() -> None:
    """Have this process end when its parent does, where the system can see to that.

    A copy that hangs would keep open what whoever started the parent reads.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it has ended before that
            os.kill(os.getpid(), signal.SIGKILL)
