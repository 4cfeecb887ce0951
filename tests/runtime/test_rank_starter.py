import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.runtime.running import wait_until_ended

from partita.compiler.errors import RankFailed
from partita.runtime.launch import launch
from partita.runtime.rank_starter import rank_starter

pytestmark = pytest.mark.dist


def server(_: str = "") -> int:
    return os.getppid()


def surroundings(name: str) -> tuple[str | None, str, int, bool, int]:
    """Return what a rank has of the process that launched it."""
    return (
        os.environ.get(name),
        os.getcwd(),
        torch.get_num_threads(),
        "added to the path" in sys.path,
        os.getpgid(0) - os.getpid(),
    )


def loaded() -> tuple[bool, bool]:
    """Return whether Dynamo is there, and whether no collection walks through it."""
    walked = {id(found) for found in gc.get_objects()}
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None, id(vars(dynamo)) not in walked


def has_loaded(module: str) -> bool:
    return module in sys.modules


def say(text: str) -> None:
    print(text, os.environ["RANK"])
    print(text, "wrong", file=sys.stderr)


def note_server(folder: str) -> None:
    Path(folder, "server").write_text(str(os.getppid()))


def test_ranks_of_all_launches_come_from_one_server() -> None:
    found = launch(server, 2) + launch(server, 1)
    assert len(set(found)) == 1
    assert found[0] != os.getpid()


def test_what_training_loads_is_there_and_never_collected() -> None:
    assert launch(loaded, 1) == [(True, True)]


def test_what_the_launcher_has_loaded_of_partita_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")  # a server that has heard of nothing
    for name, module in list(sys.modules.items()):
        is_own = name.startswith("partita.") and name.count(".") == 1
        if is_own and not hasattr(module, "__path__"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "partita.of_no_file", ModuleType("of_no_file"))
    assert launch(has_loaded, 1, ("partita.api",)) == [False]
    monkeypatch.setitem(sys.modules, "partita.api", ModuleType("api"))
    assert launch(has_loaded, 2, ("partita.api",)) == [True, True]


def test_what_is_loaded_ahead_comes_from_where_ranks_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "html.py").write_text("raise ValueError('this is no library')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path)])
    monkeypatch.setenv("MALLOC_ARENA_MAX", "5")
    monkeypatch.setitem(sys.modules, "partita.api", ModuleType("api"))
    assert launch(has_loaded, 1, ("partita.api",)) == [True]


def test_what_is_read_as_it_loads_asks_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (first,) = launch(server, 1)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    (second,) = launch(server, 1)
    assert second != first
    wait_until_ended([first])  # it is of no more use


def test_ranks_run_where_and_as_their_launcher_does_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launch(server, 1)
    monkeypatch.setenv("SEEN", "so")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("added to the path")
    name = f"{__file__}:surroundings"
    assert launch(name, 2, ("SEEN",)) == [("so", str(tmp_path), 3, False, 0)] * 2
    monkeypatch.delenv("SEEN")
    assert launch(surroundings, 1, ("SEEN",))[0][0] is None


def test_ranks_write_where_their_launcher_does_now(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for text in ("one", "two"):
        launch(say, 2, (text,))
        out, err = capfd.readouterr()
        assert sorted(out.splitlines()) == [f"{text} 0", f"{text} 1"]
        assert err.splitlines() == [f"{text} wrong"] * 2


def test_a_rank_starts_without_a_stream_that_its_launcher_has_closed() -> None:
    kept = os.dup(0)
    os.close(0)
    try:
        assert launch(os.path.basename, 1, ("a/b",)) == ["b"]
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_server_that_was_killed_is_told_and_another_one_started() -> None:
    launch(server, 1)
    starter = rank_starter()
    (process,) = launch(server, 1)
    os.kill(process, signal.SIGSTOP)  # it is there when asked, and then no more
    os.kill(process, signal.SIGKILL)
    with pytest.raises(RankFailed, match=r"starts ranks has ended with exit code -9$"):
        starter.ended()
    (other,) = launch(server, 1)
    assert other != process


def test_after_half_a_request_another_one_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (process,) = launch(server, 1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("partita.runtime.rank_starter.send_handle", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch(server, 1)
    monkeypatch.undo()
    (other,) = launch(server, 1)
    assert other != process
    wait_until_ended([process])


def test_the_server_ends_with_its_launcher(tmp_path: Path) -> None:
    code = (
        "import os, test_rank_starter as t; from partita.runtime.launch import launch; "
        f"launch(t.note_server, 1, ({str(tmp_path)!r},)); os.kill(os.getpid(), 9)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    wait_until_ended([int((tmp_path / "server").read_text())])
