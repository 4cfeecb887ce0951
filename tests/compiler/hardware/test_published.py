"""Shipped profiles predict what was measured of the machines, by others.

Figures: matmuls and all-reduces of the Azure AI benchmarking guide, nccl-tests logs of
the AWS README (p4de and p5), stas00's ml-engineering (B200; rings and NVLink SHARP).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, cast

import pytest
import torch

from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.cost.compute import Product, op_seconds
from partita.compiler.hardware import profile
from partita.compiler.hardware.profile import load_hardware, profile_names
from partita.compiler.ir.mesh import Mesh

SQUARES = (1024, 2048, 4096, 8192, 16384)
F8 = torch.float8_e4m3fn
MATMULS = {
    "a100-80gb-selene": (torch.float16, (119.4, 221.8, 228.0, 253.7, 256.5)),
    "h100-dgx": (F8, (274.1, 1011.3, 1216.9, 1290.1, 1377.3)),
    "h200": (F8, (290.8, 1013.4, 1249.1, 1300.6, 1366.3)),
}


@pytest.mark.parametrize("name", MATMULS)
def test_matmuls_take_what_was_measured(name: str) -> None:
    device = load_hardware(name).device
    dtype, measured = MATMULS[name]
    errors: list[float] = []
    for size, tflops in zip(SQUARES, measured, strict=True):
        flops, num_bytes = 2 * size**3, 3 * size**2 * dtype.itemsize
        product = Product(size, size, size)
        seconds = op_seconds(flops, num_bytes, dtype, device, product=product)
        errors.append(abs(flops / seconds / (tflops * 1e12) - 1))
    assert median(errors) < 0.04
    assert max(errors) < 0.25


# bytes, and GB/s of bus bandwidth
REDUCTIONS = {
    ("a100-80gb-selene", 8): (
        (32_000, 1.37),
        (256_000, 10.11),
        (2_000_000, 53.54),
        (16_000_000, 109.22),
        (134_000_000, 174.18),
        (1_000_000_000, 228.1),
    ),
    ("h100-efa", 8): (
        (1 << 15, 3.05),
        (1 << 18, 22.64),
        (1 << 21, 84.47),
        (1 << 24, 236.82),
        (1 << 27, 396.19),
        (1 << 30, 441.81),
    ),
    ("h200", 8): (
        (32_000, 1.84),
        (256_000, 14.75),
        (2_000_000, 88.78),
        (16_000_000, 240.41),
        (134_000_000, 412.45),
        (1_000_000_000, 467.58),
    ),
    ("b200", 8): (
        (1 << 15, 1.2),
        (1 << 18, 9.54),
        (1 << 21, 63.09),
        (1 << 24, 254.96),
        (1 << 27, 568.38),
        (1 << 30, 723.34),
    ),
    ("b200", 32): ((1 << 22, 18.9), (1 << 30, 361.99), (1 << 34, 381.8)),
    ("a100-40gb", 16): (
        (1 << 18, 2.06),
        (1 << 21, 9.09),
        (1 << 24, 26.39),
        (1 << 27, 64.31),
        (1 << 30, 76.79),
    ),
    ("h200", 32): ((1 << 34, 364.87),),
    # what rings reach on fewer GPUs of a node, and switches on more
    ("h200", 4): ((1 << 33, 363.3),),
    ("h200", 6): ((1 << 33, 435.6),),
    ("b200", 4): ((1 << 33, 673.2),),
    ("b200", 7): ((1 << 33, 811.2),),
}


@pytest.mark.parametrize(("name", "num_ranks"), REDUCTIONS)
def test_all_reduces_take_what_was_measured(name: str, num_ranks: int) -> None:
    hardware, mesh = load_hardware(name), Mesh(dp=num_ranks)
    errors: list[float] = []
    for num_bytes, busbw in REDUCTIONS[name, num_ranks]:
        wire = 2 * (num_ranks - 1) * num_bytes // num_ranks
        seconds = axis_seconds(CollectiveKind.ALL_REDUCE, wire, mesh, 0, hardware)
        errors.append(abs(wire / seconds / (busbw * 1e9) - 1))
    assert median(errors) < 0.1
    assert max(errors) < 0.2


def leaves(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, below in cast(dict[str, object], value).items():
            yield from leaves(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for below in cast(list[Any], value):
            named = isinstance(below, dict) and "name" in below
            yield from leaves(below, f"{path}.{below['name']}" if named else path)
    elif isinstance(value, int | float):
        yield path


@pytest.mark.parametrize("name", profile_names())
def test_every_number_has_a_source(name: str) -> None:
    folder = Path(profile.__file__).parent / "profiles"
    document = json.loads((folder / f"{name}.json").read_text())
    sources = document.pop("sources")
    document.pop("errors", None)
    for path in leaves(document):
        if path.endswith(".ranks"):
            continue  # devices_per_node again
        found = [s for s in sources if path == s or path.startswith(f"{s}.")]
        assert found, f"{path} has no source"


@pytest.mark.parametrize("name", profile_names())
def test_every_source_is_of_a_number(name: str) -> None:
    folder = Path(profile.__file__).parent / "profiles"
    document = json.loads((folder / f"{name}.json").read_text())
    paths = list(leaves({k: v for k, v in document.items() if k != "errors"}))
    for source in document["sources"]:
        assert any(p == source or p.startswith(f"{source}.") for p in paths), source
