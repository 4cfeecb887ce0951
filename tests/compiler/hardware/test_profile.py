import json
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.compiler.cost.compute import short_name
from partita.compiler.errors import BadOptions
from partita.compiler.hardware.profile import (
    CollectiveKind,
    Hardware,
    load_hardware,
    profile_names,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.units import shown


def h100() -> dict[str, Any]:
    return load_hardware("h100-dgx").to_dict()


@pytest.mark.parametrize("name", profile_names())
def test_profile_is_what_it_prints(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.name == name
    assert hardware.source
    document = json.loads(json.dumps(hardware.to_dict(), allow_nan=False))
    assert Hardware.from_dict(document) == hardware
    assert hash(Hardware.from_dict(document)) == hash(hardware)


def test_profile_is_loaded_from_a_file_and_from_a_document(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(h100()))
    assert load_hardware(path) == load_hardware(str(path)) == load_hardware("h100-dgx")
    assert load_hardware(h100()) == load_hardware("h100-dgx")
    hardware = load_hardware("cpu-gloo")
    assert load_hardware(hardware) is hardware


def test_links_of_the_free_profile_cost_nothing() -> None:
    free, gloo = load_hardware("cpu-gloo-free"), load_hardware("cpu-gloo")
    assert free.device == gloo.device
    assert set(free.links[0].costs) == set(CollectiveKind)
    for cost in free.links[0].costs.values():
        assert (cost.alpha_s, cost.bytes_per_s) == (0.0, inf)


@pytest.mark.parametrize(
    ("mesh", "links"),
    [
        (Mesh(dp=2, tp=8), ["infiniband", "nvlink"]),
        (Mesh(dp=2, tp=4), ["nvlink", "nvlink"]),
        (Mesh(dp=4, tp=4), ["infiniband", "nvlink"]),
        (Mesh(pp=2, dp=4, tp=4), ["infiniband", "infiniband", "nvlink"]),
        (Mesh(dp=16), ["infiniband"]),
    ],
)
def test_axis_runs_over_the_fastest_link_that_spans_it(
    mesh: Mesh, links: list[str]
) -> None:
    hardware = load_hardware("h100-dgx")
    assert [hardware.link(mesh, axis).name for axis in range(mesh.ndim)] == links


DTYPES = (
    "f64, f32, f16, bf16, f8e4m3, f8e5m2, c32, c64, c128, i64, i32, i16, i8, u64, u32, "
    "u16, u8, b8"
)


def test_a_profile_may_tell_of_every_dtype_that_tensors_have() -> None:
    for text in DTYPES.split(", "):
        assert short_name(TensorType.parse(f"{text}[1]").dtype) == text
    known: set[str] = set()
    for dtype in vars(torch).values():
        if isinstance(dtype, torch.dtype):
            with suppress(KeyError):
                known.add(short_name(dtype))
    assert known == set(DTYPES.split(", "))


def test_named_axis_runs_over_its_link() -> None:
    hardware = Hardware.from_dict({**h100(), "axes": {"tp": "infiniband"}})
    assert hardware.link(Mesh(dp=2, tp=2), 1).name == "infiniband"
    assert hardware.link(Mesh(dp=2, tp=2), 0).name == "nvlink"


def replaced(path: str, value: object) -> dict[str, Any]:
    document = entry = h100()
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    for key in parents:
        entry = entry[key]  # type: ignore[index]
    entry[last] = value  # type: ignore[index]
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        *[
            (
                "device.launch_s",
                value,
                f"device.launch_s is {text}; want seconds, a number from 0 to 1e6",
            )
            for value, text in (
                (-1, "-1"),
                (nan, "nan"),
                (inf, "inf"),
                (1e308, "1e+308"),
            )
        ],
        (
            "device.memory_bytes_per_s",
            1e-320,
            "device.memory_bytes_per_s is 1e-320; want bytes per second, a number from "
            "1e-6 to 1e30",
        ),
        (
            "device.memory_bytes",
            "80GiB",
            'device.memory_bytes is "80GiB"; want bytes, a whole number from 1 to 1e18',
        ),
        (
            "device.memory_bytes",
            10**400,
            f"device.memory_bytes is 1{'0' * 56}...; want bytes, a whole number from 1 "
            "to 1e18",
        ),
        ("device.kind", "tpu", 'device.kind is "tpu"; want "cpu" or "cuda"'),
        (
            "device.flops_per_s.f32",
            0,
            "device.flops_per_s.f32 is 0; want a number from 1e-6 to 1e30",
        ),
        (
            "device.flops_per_s.bfloat16",
            1e12,
            f"device.flops_per_s has an unknown key 'bfloat16'; want one of {DTYPES}",
        ),
        (
            "device.ops",
            {"aten.mm.default": {"flops_per_s": {"tf32": 1e12}}},
            "device.ops.aten.mm.default.flops_per_s has an unknown key 'tf32'; want "
            f"one of {DTYPES}",
        ),
        (
            "device.flops_per_s",
            5,
            "device.flops_per_s is 5; want an object from "
            'dtype ("f32" at least) to FLOP per second',
        ),
        ("links", [], "links is []; want a list of links, slowest first"),
        (
            "links.1.costs.all_gather",
            {"alpha_s": 0},
            "links.1.costs.all_gather has no key 'bytes_per_s'; want an object with "
            "alpha_s (seconds per message step) and bytes_per_s (wire bytes per second "
            "and rank)",
        ),
        (
            "links.1.costs.all_reduce.others.0.algorithm",
            "pigeon",
            'links.1.costs.all_reduce.others.0.algorithm is "pigeon"; want "ring", '
            '"tree", "switch" or "chain"',
        ),
        (
            "device.matmul.tiles.0.efficiency",
            2,
            "device.matmul.tiles.0.efficiency is 2; want a share of the best speed, a "
            "number from 1e-6 to 1",
        ),
        (
            "links.0.costs.all_reduce.by_size",
            {"two": 1.0},
            'links.0.costs.all_reduce.by_size is "two"; want keys that are whole '
            "numbers from 1 to 1e9",
        ),
        (
            "nodes",
            0,
            "nodes is 0; want how many nodes there are, a whole number from 1 to 1e9, "
            "or null for any number",
        ),
        (
            "speed",
            1,
            "it has an unknown key 'speed'; want one of name, source, nodes, "
            "devices_per_node, device, links, overlap, axes, sources, errors",
        ),
    ],
)
def test_malformed_document_says_where_and_what(
    path: str, value: object, message: str
) -> None:
    with pytest.raises(BadOptions) as raised:
        load_hardware(replaced(path, value))
    assert str(raised.value) == f"hardware profile: {message}"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "axes.tp",
            "pigeon",
            "axes.tp is 'pigeon'; want the name of a link, one of infiniband, nvlink",
        ),
        (
            "device.caches",
            [{"bytes": 9, "bytes_per_s": 1.0}, {"bytes": 8, "bytes_per_s": 2.0}],
            "device.caches hold [9, 8] bytes; want the smallest first",
        ),
        (
            "links.0.ranks",
            8,
            "links must start with the slowest, which joins all ranks ('ranks': null); "
            "found ['infiniband', 'nvlink']",
        ),
        (
            "links.0.name",
            "nvlink",
            "two links have the name 'nvlink'; want a name of its own for each",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(
    path: str, value: object, message: str, tmp_path: Path
) -> None:
    document = replaced(path, value)
    with pytest.raises(BadOptions) as raised:
        load_hardware(document)
    assert str(raised.value) == f"hardware h100-dgx: {message}"
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(document))
    with pytest.raises(BadOptions) as raised:
        load_hardware(file)
    assert str(raised.value) == f"{file}: hardware h100-dgx: {message}"


@pytest.mark.parametrize("name", ["tpu-v9", "a\0b", "x" * 5000])
def test_unknown_name_lists_the_profiles(name: str) -> None:
    with pytest.raises(BadOptions) as raised:
        load_hardware(name)
    assert str(raised.value) == (
        f"hardware {shown(name)} is neither a file nor a profile; the profiles are "
        "a100-40gb, a100-80gb-jean-zay, a100-80gb-selene, b200, cpu-gloo, "
        "cpu-gloo-free, h100-dgx, h100-efa, h200"
    )


def test_file_is_read_as_strictly_as_a_plan(tmp_path: Path) -> None:
    path, text = tmp_path / "mine.json", json.dumps(h100())
    path.write_text(text, encoding="utf-8-sig")
    assert load_hardware(path) == load_hardware("h100-dgx")
    path.write_text(text.replace('"launch_s": 4e-06', '"launch_s": NaN'))
    with pytest.raises(BadOptions) as raised:
        load_hardware(path)
    assert str(raised.value) == (
        f"{path}: wanted JSON: found NaN at device.launch_s, wanted a finite number"
    )
