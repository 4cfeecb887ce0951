"""Vector instructions that worked once here are not tried out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partita.runtime import vector_trials
from partita.runtime.vector_trials import noted_trials


class Kind:
    """A kind of vector instructions that works or does not."""

    def __init__(self, flags: str, works: bool = True) -> None:
        self.flags, self.works, self.num_trials = flags, works, 0

    def build_arch_flags(self) -> str:
        return self.flags


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return torch's class, whose trials build nothing and are counted."""
    from torch._inductor.cpu_vec_isa import VecISA

    def try_out(kind: Kind, code: str) -> bool:
        kind.num_trials += 1
        return kind.works

    monkeypatch.setattr(VecISA, "check_build", try_out)
    return VecISA


def trials(trial: Any, folder: Path, kind: Kind, code: str = "code") -> int:
    """Ask once more whether a kind works; return how often it was tried for that."""
    before = kind.num_trials
    with noted_trials(folder):
        assert trial.check_build(kind, code) == kind.works
    return kind.num_trials - before


def test_what_worked_is_not_tried_again(trial: Any, tmp_path: Path) -> None:
    folder = tmp_path / "made when needed"
    assert trials(trial, folder, Kind("-mavx2")) == 1
    assert trials(trial, folder, Kind("-mavx2")) == 0  # of the next process, say


def test_what_failed_is_tried_again(trial: Any, tmp_path: Path) -> None:
    kind = Kind("-mavx2", works=False)
    assert [trials(trial, tmp_path, kind) for _ in range(2)] == [1, 1]
    kind.works = True
    assert [trials(trial, tmp_path, kind) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize(
    "name", ["platform.node", "cpp_compiler", "torch.backends.cpu.get_cpu_capability"]
)
def test_another_machine_or_compiler_is_tried_anew(
    trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind = Kind("-mavx2")
    trials(trial, tmp_path, kind)
    owner, _, attribute = name.rpartition(".")
    place: Any = vector_trials
    for part in filter(None, owner.split(".")):
        place = getattr(place, part)
    monkeypatch.setattr(place, attribute, lambda: "another")
    assert trials(trial, tmp_path, kind) == 1


def test_other_code_or_flags_are_tried_anew(trial: Any, tmp_path: Path) -> None:
    trials(trial, tmp_path, Kind("-mavx2"))
    assert trials(trial, tmp_path, Kind("-mavx2"), "other code") == 1
    assert trials(trial, tmp_path, Kind("-mavx2 -mfma")) == 1
