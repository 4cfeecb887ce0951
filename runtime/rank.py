"""One rank that ``launch`` started: run the target, report how it ended."""

from __future__ import annotations

import atexit
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from partita.runtime.target import find_target


@dataclass(frozen=True, slots=True)
class Report:
    """How a rank's target ended.

    ``error`` is the pickled exception, where it can be pickled.
    """

    time_s: float
    result: Any = None
    traceback: str = ""
    error: bytes = b""

    @staticmethod
    def path(folder: Path, rank: int) -> Path:
        """Return where a rank's report lies."""
        return folder / f"rank{rank}"


def stacks_path(folder: Path, rank: int) -> Path:
    """Return where a rank that crashes leaves what its threads were at."""
    return folder / f"stacks{rank}"


def main(folder_name: str, pipe: int) -> None:
    """Run the target that lies in the folder, and leave the report there.

    ``pipe`` ends when the launching process does, and this one with it. A failed rank
    leaves at once, with exit code 1.
    """
    atexit.register(_leave)  # nothing runs that was registered before
    watch = threading.Thread(target=_end_with_launcher, args=(pipe,), daemon=True)
    watch.start()
    folder, rank = Path(folder_name), int(os.environ["RANK"])
    path = Report.path(folder, rank)
    stacks = os.open(stacks_path(folder, rank), os.O_WRONLY | os.O_CREAT)
    faulthandler.enable(stacks)  # stays open: it is written by a process that crashes
    try:
        target, args = pickle.loads((folder / "payload").read_bytes())
        result = find_target(target)(*args)
        data = pickle.dumps(Report(time.time(), result=result))
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            data = pickle.dumps(Report(time.time()))
        else:
            _write(path, pickle.dumps(_failure(error)))
            _leave(1)
    _write(path, data)


def _leave(code: int = 0) -> NoReturn:
    """End this process without taking the interpreter down.

    A backend's threads could keep a failed rank from ending; and one of gloo's that
    still holds a tensor while Python ends aborts a rank whose target is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_launcher(pipe: int) -> None:
    os.read(pipe, 1)  # nobody writes: it returns when the other end is gone
    os.killpg(0, signal.SIGKILL)


def _failure(error: BaseException) -> Report:
    time_s = time.time()
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(error.with_traceback(inner)))
    try:
        return Report(time_s, traceback=text, error=pickle.dumps(error))
    except Exception:
        return Report(time_s, traceback=text)


def _write(path: Path, data: bytes) -> None:
    """Write a report whole or not at all."""
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(data)
    unfinished.rename(path)
