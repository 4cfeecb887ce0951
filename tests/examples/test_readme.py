"""README.md: its programs and commands run, its output is what they print."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.examples.documented import (
    ROOT,
    assert_prints,
    blocks,
    run_ranks,
    run_script,
)
from tests.slow import slow

from partita.cli.main import COMMANDS, main
from partita.runtime.launch import launch

PAGE = ROOT / "README.md"
EXAMPLE, OUTPUT, TRAINING = (
    b.text for b in blocks(PAGE) if b.section == "Twenty lines"
)
MAKE, COMMAND_LINES = (b.text for b in blocks(PAGE) if b.language == "console")


def run_example(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    known: dict[str, Any] = {}
    exec(EXAMPLE, known)
    return known, capsys.readouterr().out


def test_example_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    _, printed = run_example(capsys)

    assert len([line for line in EXAMPLE.splitlines() if line]) <= 20
    assert_prints(OUTPUT, printed)


def test_example_is_the_quickstart() -> None:
    quickstart = (ROOT / "examples" / "quickstart.py").read_text("utf-8")
    body = quickstart.partition('"""\n\n')[2].splitlines()

    without_docstrings = [line for line in body if '"""' not in line]
    assert [line for line in without_docstrings if line] == [
        line for line in EXAMPLE.splitlines() if line
    ]


def test_pins_are_followed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    known, _ = run_example(capsys)
    (pins,) = (b.text for b in blocks(PAGE) if b.section == "Pins")
    exec(pins, known)
    assert "by '*.bias', softly, and followed" in capsys.readouterr().out


TELL = """
import os
from pathlib import Path
Path("loss" + os.environ["RANK"]).write_text(str(loss.item()))
"""


@pytest.mark.dist
@pytest.mark.parametrize("by", ["launch", slow("torchrun")])
def test_training_loop_trains_on_two_ranks(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(f"{EXAMPLE}{TRAINING}{TELL}", "utf-8")

    if by == "torchrun":
        run_ranks(["--nproc-per-node=2", "train.py"], tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        launch(run_script, 2, (tmp_path / "train.py",))

    first, second = (float((tmp_path / f"loss{rank}").read_text()) for rank in "01")
    assert 0 < first < 2
    assert first == second


MIXED, SCALED = (b.text for b in blocks(PAGE) if b.section == "Mixed precision")


def test_mixed_precision_is_verified(capsys: pytest.CaptureFixture[str]) -> None:
    known, _ = run_example(capsys)
    exec(MIXED, known)
    assert capsys.readouterr().out.startswith("verify: ok: 5 tensors")


@pytest.mark.dist
@pytest.mark.slow
def test_loop_with_a_scaled_loss_trains_on_two_ranks(tmp_path: Path) -> None:
    script = f"{EXAMPLE}{MIXED}{SCALED}{TELL}"
    (tmp_path / "train.py").write_text(script, "utf-8")

    run_ranks(["--nproc-per-node=2", "train.py"], tmp_path)

    first, second = (float((tmp_path / f"loss{rank}").read_text()) for rank in "01")
    assert 0 < first < 2
    assert first == second


def test_make_targets_are_there() -> None:
    targets = [line.split()[1] for line in MAKE.splitlines()]
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert targets == ["demo", "test"]
    assert all(f"\n{target}: " in makefile for target in targets)


@pytest.mark.dist
@pytest.mark.slow
def test_command_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    for line in COMMAND_LINES.splitlines():
        program, *words = shlex.split(line)
        assert program == "partita"
        assert main(words) == 0, line

    assert {path.name for path in tmp_path.glob("llama*")} == {
        "llama.plan.json",
        "llama.html",
        "llama.trace.json",
        "llama.memory.pdf",
        "llama.dot",
        "llama.bundle.zip",
    }


def test_every_command_is_shown() -> None:
    shown = [line.split()[1] for line in COMMAND_LINES.splitlines()]

    assert sorted(shown) == sorted(command.name for command in COMMANDS)


def test_links_lead_somewhere() -> None:
    text = PAGE.read_text("utf-8")
    targets = [part.partition(")")[0] for part in text.split("](")[1:]]

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
