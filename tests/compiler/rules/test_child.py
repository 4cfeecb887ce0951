"""What happens in a child stays there: crashes, hangs and errors."""

import os
import subprocess
import sys
import time

import pytest
import torch

from partita.compiler.rules.child import ChildFailed, run_in_child


def test_answer_comes_back() -> None:
    assert run_in_child(lambda: torch.ones(3).sum().item(), 30) == 3


def test_crash_is_told_by_its_signal() -> None:
    with pytest.raises(ChildFailed, match="ended by SIGABRT"):
        run_in_child(os.abort, 30)


def test_early_end_is_told_by_its_exit_code() -> None:
    with pytest.raises(ChildFailed, match="ended by exit code 3"):
        run_in_child(lambda: os._exit(3), 30)


def test_error_is_told_by_its_message() -> None:
    with pytest.raises(ChildFailed, match=r"ValueError: invalid literal"):
        run_in_child(lambda: int("x"), 30)


def test_what_waits_to_be_printed_is_printed_once() -> None:
    code = (
        "from partita.compiler.rules.child import run_in_child\n"
        "print('once', end=' ')\n"
        "run_in_child(int, 30)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert found.stdout == "once "


def test_child_that_takes_too_long_is_ended() -> None:
    start = time.monotonic()

    with pytest.raises(ChildFailed, match=r"no answer after 0\.2 s"):
        run_in_child(lambda: time.sleep(60), 0.2)

    assert time.monotonic() - start < 30


def test_child_ends_with_its_parent() -> None:
    code = (
        "import os, time\n"
        "from partita.compiler.rules.child import run_in_child\n"
        "def hang():\n"
        "    os.write(1, b'begun')\n"
        "    os.kill(os.getppid(), 9)\n"
        "    time.sleep(100)\n"
        "run_in_child(hang, 200)\n"
    )

    # Returns once nobody has the pipe open that the child prints to.
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60
    )

    assert found.stdout == b"begun"
    assert found.returncode == -9
