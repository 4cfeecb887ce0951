import pytest
import torch

from partita.compiler.cost.compute import op_seconds, peak_flops_per_s
from partita.compiler.hardware.profile import Device

DEVICE = Device(
    kind="cpu",
    flops_per_s={"f32": 100.0, "bf16": 400.0},
    memory_bytes_per_s=10.0,
    memory_bytes=1000,
    launch_s=2.0,
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
