"""``partita calibrate``: a profile of this machine that plans can use."""

import json
import tempfile
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.compiler.hardware.links import CollectiveKind
from partita.compiler.hardware.profile import load_hardware

Captured = pytest.CaptureFixture[str]


@pytest.mark.dist
def test_measures_fits_and_saves_what_plan_takes(
    target: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "mine.json"
    assert main(["calibrate", "-o", str(path), "--quick", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"saved {path}\n"
    assert json.loads(out) == json.loads(path.read_text())
    hardware = load_hardware(path)
    assert hardware.name == "mine"
    assert hardware.source.endswith("mesh tp=2")
    assert 1e9 < hardware.device.flops_per_s["f32"] < 1e13
    assert 1e8 < hardware.device.memory_bytes_per_s < 1e12
    assert 1e-7 < hardware.device.launch_s < 1e-3
    assert "partita.attention.default" in hardware.device.ops
    assert set(hardware.links[0].costs) == set(CollectiveKind)
    for kind in CollectiveKind:
        assert f"links.tp.costs.{kind}" in hardware.errors
    assert main(["plan", target, "--mesh", "tp=2", "--hardware", str(path)]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mesh", "tp"], "partita: mesh 'tp'"),
        (["--mesh", "tp=1"], "partita: mesh tp=1 has no axis of two ranks"),
    ],
)
def test_bad_mesh_is_told_before_anything_runs(
    words: list[str], message: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "mine.json"
    assert main(["calibrate", "-o", str(path), *words]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not path.exists()


def test_output_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "no" / "mine.json"
    # Ranks could not start.
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere))
    for path, reason in (
        (nowhere, "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / ("x" * 500), "File name too long"),
    ):
        assert main(["calibrate", "-o", str(path)]) == 2
        told = f"partita: -o {path}: cannot be written: {reason}\n"
        assert capsys.readouterr().err == told
    assert not [*tmp_path.iterdir()]


def test_output_is_asked_for(capsys: Captured) -> None:
    assert main(["calibrate"]) == 2
    assert "-o/--output" in capsys.readouterr().err
