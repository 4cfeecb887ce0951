import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.runtime.running import wait_until_ended

from partita.compiler.errors import BadOptions, RankFailed
from partita.compiler.ir.mesh import Mesh
from partita.runtime.groups import bind
from partita.runtime.launch import launch
from partita.runtime.target import find_target

pytestmark = pytest.mark.dist


def add_ranks(offset: int) -> list[int]:
    bind(Mesh(tp=2), "cpu")
    total = torch.tensor([dist.get_rank() + offset])
    dist.all_reduce(total)
    return [dist.get_rank(), int(total)]


class Odd(Exception):
    """An exception that is pickled, but not read again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def fail_while_others_wait(how: str, folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    Path(folder, f"pid{rank}").write_text(str(os.getpid()))
    # What a rank has started must go with it.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"pid{rank}.child").write_text(str(child.pid))
    dist.barrier()
    if rank == 1:
        if how == "raise":
            raise Odd("wrong", "shape")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(3)
    dist.all_reduce(torch.ones(1))
    time.sleep(600)


def leave_while_others_wait() -> None:
    """Return on rank 1, while rank 0 waits for it."""
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


class Aborting:
    """What ends its process where Python takes it down, as a thread of gloo's can."""

    def __del__(self) -> None:
        os.abort()


left_behind: list[Aborting] = []


def leave_much_behind(folder: str) -> int:
    left_behind.append(Aborting())
    atexit.register(Path(folder, f"left{os.environ['RANK']}").touch)
    return int(os.environ["RANK"])


def abort_when_done() -> None:
    atexit.register(os.abort)


def sleep(folder: str) -> None:
    Path(folder, f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    time.sleep(600)


def launch_sleepers(folder: str) -> None:
    launch(f"{__file__}:sleep", 2, (folder,))


def wait_for_all(folder: Path, num: int) -> None:
    """Wait until all that have left their numbers there have ended."""
    pids = [int(path.read_text()) for path in folder.glob("pid*")]
    assert len(pids) == num
    wait_until_ended(pids)


def test_results_come_back_by_rank() -> None:
    assert launch(f"{__file__}:add_ranks", 2, (10,)) == [[0, 21], [1, 21]]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "raise",
            r"^rank 1 failed:\nTraceback[^$]*test_launch[^$]*Odd: wrong shape",
        ),
        ("kill", r"^rank 1 was killed by signal 9 \(SIGKILL\)$"),
        (
            "crash",
            r"^rank 1 was killed by signal 11 \(SIGSEGV\):\nFatal Python error: "
            r"Segmentation fault\n[^$]* in fail_while_others_wait\n",
        ),
        ("exit", r"^rank 1 left with exit code 3 before its target was done$"),
    ],
)
def test_a_failing_rank_ends_all_and_is_named(
    how: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RankFailed, match=message):
        launch(f"{__file__}:fail_while_others_wait", 2, (how, str(tmp_path)))
    wait_for_all(tmp_path, 4)


def test_a_rank_that_left_before_another_failed_is_named() -> None:
    message = r"^rank 0 failed, after rank 1 was done and had left:\nTraceback"
    with pytest.raises(RankFailed, match=message):
        launch(leave_while_others_wait, 2)


def test_the_error_of_a_rank_is_the_cause() -> None:
    with pytest.raises(RankFailed) as raised:
        launch("gone.py:f", 1)
    assert isinstance(raised.value.__cause__, BadOptions)
    assert str(raised.value.__cause__) == "target: there is no file gone.py"


def test_a_rank_is_well_whatever_it_leaves_behind(tmp_path: Path) -> None:
    assert launch(f"{__file__}:leave_much_behind", 2, (str(tmp_path),)) == [0, 1]
    assert {path.name for path in tmp_path.iterdir()} == {"left0", "left1"}


def test_a_rank_that_dies_once_its_target_is_done_is_told_so() -> None:
    message = (
        r"^rank 0 was killed by signal 6 \(SIGABRT\) after its target was done:\n"
        "Fatal Python error: Aborted\n"
    )
    with pytest.raises(RankFailed, match=message):
        launch(f"{__file__}:abort_when_done", 1)


def test_ranks_that_take_too_long_are_ended() -> None:
    with pytest.raises(
        RankFailed, match=r"^rank 0, 1 still ran after 0.2 s; all were ended"
    ):
        launch(time.sleep, 2, (600,), timeout_s=0.2)


def test_ranks_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    code = (
        f"from test_launch import launch_sleepers; launch_sleepers({str(tmp_path)!r})"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
    )
    while len(list(tmp_path.glob("pid*"))) < 2:
        time.sleep(0.02)
        assert launcher.poll() is None
    launcher.kill()
    launcher.wait()
    wait_for_all(tmp_path, 2)


def test_under_torchrun_the_target_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert launch(os.path.basename, 2, ("a/b",)) == ["b"]


def write_sum(folder: str) -> None:
    ((_, total),) = launch(add_ranks, 2, (10,))
    Path(folder, os.environ["RANK"]).write_text(str(total))


def test_it_works_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import test_launch; test_launch.write_sum({str(tmp_path)!r})")
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, "--standalone", str(script)],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["21", "21"]


def test_a_target_that_is_not_there_is_named() -> None:
    with pytest.raises(BadOptions, match=r"test_launch.py has no function 'missing'"):
        find_target(f"{__file__}:missing")
    with pytest.raises(BadOptions, match=r"there is no file gone\.py"):
        find_target("gone.py:f")
    with pytest.raises(BadOptions, match=r"there is no module no_such_module\.x"):
        find_target("no_such_module.x:f")
