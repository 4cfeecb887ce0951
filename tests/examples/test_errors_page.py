"""Every program of docs/errors.md, run: the wrong ones and the mended ones."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.documented import (
    ROOT,
    Block,
    assert_prints,
    blocks,
    run_ranks,
    run_script,
)

from partita.compiler import errors
from partita.runtime.launch import launch

FIRST, *REST = blocks(ROOT / "docs" / "errors.md")
SECTIONS = {
    block.section: [b for b in REST if b.section == block.section] for block in REST
}
MARKS = {
    "BadMesh": pytest.mark.dist,
    "RankFailed": pytest.mark.dist,
    "NoSolution": pytest.mark.slow,  # it looks for ways out as long as it may
}
TORCHRUN: str = "torchrun --standalone --nproc-per-node 2 train.py\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder of one's own; leave the one-rank group that a block joined."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_page_names_every_error_class() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    found = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}

    assert found - {"PartitaError"} == {
        line[3:] for line in page.splitlines() if line.startswith("## ")
    }


@pytest.mark.parametrize(
    "section",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in SECTIONS],
)
def test_wrong_programs_say_so_and_mended_ones_run(section: str, folder: Path) -> None:
    known: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(FIRST.text, known)
    wrong = list(zip(SECTIONS[section], [*SECTIONS[section][1:], None], strict=True))

    for block, below in wrong:
        promised = below if below is not None and below.language == "text" else None
        if block.language == "text":
            continue
        if block.language == "console":
            assert block.text == TORCHRUN
            launch(run_script, 2, (folder / "train.py",))
        elif block.text.startswith("# "):
            fails_as_script(block, promised, folder)
        elif promised is None:
            exec(compile(block.text, f"errors.md:{block.line}", "exec"), known)
        else:
            with pytest.raises(getattr(errors, section)) as caught:
                exec(compile(block.text, f"errors.md:{block.line}", "exec"), known)
            assert type(caught.value).__name__ == section
            assert_prints(promised.text, str(caught.value))


def fails_as_script(block: Block, promised: Block | None, folder: Path) -> None:
    assert promised is not None
    script = folder / block.text.split()[1]
    script.write_text(block.text, "utf-8")
    with pytest.raises(getattr(errors, block.section)) as caught:
        run_script(script)
    assert_prints(promised.text, str(caught.value))


@pytest.mark.dist
@pytest.mark.slow
def test_a_script_that_needs_ranks_runs_under_torchrun(folder: Path) -> None:
    (script,) = (b for b in SECTIONS["BadMesh"] if b.text.startswith("# train.py\n"))
    (folder / "train.py").write_text(script.text, "utf-8")
    run_ranks(TORCHRUN.split()[2:], folder)
