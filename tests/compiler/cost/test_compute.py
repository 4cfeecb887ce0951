from dataclasses import replace

import pytest
import torch

from partita.compiler.cost.compute import (
    Product,
    memory_s,
    op_seconds,
    peak_flops_per_s,
    product_s,
)
from partita.compiler.hardware.device import (
    Cache,
    Device,
    MatmulCurve,
    OpRate,
    Tile,
)

DEVICE = Device(
    kind="cpu",
    flops_per_s={"f32": 100.0, "bf16": 400.0},
    memory_bytes_per_s=10.0,
    memory_bytes=1000,
    launch_s=2.0,
)
TILED = replace(
    DEVICE,
    matmul=MatmulCurve(
        units=4,
        tiles=(Tile(8, 4, 1.0), Tile(2, 2, 0.5)),
        splits=(1, 2),
        half_k_bytes=24.0,
    ),
)


@pytest.mark.parametrize(
    ("flops", "num_bytes", "dtype", "expected"),
    [
        (1000, 10, torch.float32, 1000 / 100 + 2),
        (1000, 10, torch.bfloat16, 1000 / 400 + 2),
        (1000, 500, torch.float32, 500 / 10 + 2),
        (0, 500, torch.int64, 500 / 10 + 2),
        (0, 0, torch.float32, 0.0),
    ],
)
def test_op_takes_the_longer_of_compute_and_memory(
    flops: float, num_bytes: float, dtype: torch.dtype, expected: float
) -> None:
    assert op_seconds(flops, num_bytes, dtype, DEVICE) == pytest.approx(expected)


def test_unknown_dtype_computes_as_f32() -> None:
    assert peak_flops_per_s(torch.float16, DEVICE) == 100.0


@pytest.mark.parametrize(
    ("product", "flops"),
    [
        # 4 tiles of 8 x 4 on 4 units: one full wave
        (Product(16, 8, 10), 4 * 2 * 8 * 4 * (10 + 6)),
        # a row more is another row of tiles: 2 waves
        (Product(17, 8, 10), 2 * 4 * 2 * 8 * 4 * (10 + 6)),
        # one tile alone would leave units idle; 4 small ones are half as efficient
        (Product(4, 4, 10), 4 * 2 * 2 * 2 * (10 + 6) / 0.5),
        # 2 tiles, each cut into two halves of the inner size
        (Product(16, 4, 100), 4 * 2 * 8 * 4 * (100 / 2 + 6)),
        (Product(16, 8, 10, batch=3), 3 * 4 * 2 * 8 * 4 * (10 + 6)),
        (Product(16, 8, 10, count=2), 2 * 4 * 2 * 8 * 4 * (10 + 6)),
    ],
)
def test_product_is_dealt_to_units_in_waves_of_tiles(
    product: Product, flops: float
) -> None:
    assert product_s(product, torch.float32, TILED) == pytest.approx(flops / 100)
    assert op_seconds(1, 1, torch.float32, TILED, "mm", product) == pytest.approx(
        flops / 100 + 2
    )


def test_speed_grows_with_each_size_and_is_half_at_the_half_size() -> None:
    curve = MatmulCurve(
        1, (Tile(1, 1, 1.0),), half_m=8.0, half_n=16.0, half_k_bytes=128.0
    )
    device = replace(DEVICE, matmul=curve)
    much = 1e9
    for m, n, k in ((8, much, much), (much, 16, much), (much, much, 32)):
        best_s = 2 * m * n * k / 100
        found = product_s(Product(m, n, k), torch.float32, device)
        assert found == pytest.approx(2 * best_s, rel=1e-6)


def test_bytes_that_fit_a_cache_move_at_its_speed() -> None:
    caches = (Cache(100, 80.0), Cache(400, 40.0))
    device = replace(DEVICE, caches=caches)
    assert [memory_s(n, device) for n in (100, 101, 400, 401)] == pytest.approx(
        [100 / 80, 101 / 40, 400 / 40, 401 / 10]
    )


def test_op_that_the_profile_knows_reaches_what_stands_there() -> None:
    ops = {
        "known.flops": OpRate({"f32": 20.0, "bf16": 50.0}),
        "known.bytes": OpRate(bytes_per_s=2.0),
    }
    device = replace(TILED, ops=ops)
    product = Product(16, 8, 10)
    for dtype, rate in ((torch.float32, 20.0), (torch.bfloat16, 50.0)):
        found = op_seconds(1000, 1, dtype, device, "known.flops", product)
        assert found == pytest.approx(1000 / rate + 2)
    found = op_seconds(0, 100, torch.float32, device, "known.bytes")
    assert found == pytest.approx(100 / 2 + 2)
    assert op_seconds(0, 100, torch.float32, device, "other") == pytest.approx(12)
