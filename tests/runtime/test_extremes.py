"""NaN in maxima and minima over gloo, wherever it comes from."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest
import torch
from tests.e2e.boxing_programs import BoxingCase, X
from tests.e2e.test_boxings import expected

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.executor import bind_program
from partita.runtime.extremes import over_ranks
from partita.runtime.groups import bind
from partita.runtime.launch import launch
from partita.runtime.measure import count_collectives
from partita.runtime.reshard import reshard
from partita.runtime.shard_gradient import over_all_ranks
from partita.runtime.shards import take_shard

SHAPE = (6, 5)
MESH = Mesh(tp=2)
FLOATS = torch.float32, torch.float64
ODD = -inf, -3.0, -1.5, -1e-45, -0.0, 0.0, 1e-45, 1.5, 3.0, inf


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_what_is_compared_has_the_order_of_the_floats(
    dtype: torch.dtype, reduction: str
) -> None:
    values = (*ODD, nan) if reduction == "max" else (nan, *ODD)
    x = torch.tensor(values, dtype=dtype)
    seen: list[list[int]] = []
    found = over_ranks(x, reduction, lambda sent: seen.append(sent.tolist()))
    assert seen == [sorted(seen[0])]
    assert found.dtype == dtype
    assert torch.equal(found.nan_to_num(7.0), x.nan_to_num(7.0))
    assert torch.equal(found.signbit()[1:-1], x.signbit()[1:-1])


def test_integers_and_sums_are_joined_as_they_are() -> None:
    for x, reduction in ((torch.arange(3), "max"), (torch.ones(3), "sum")):
        kept = x.clone()
        found = over_ranks(x, reduction, lambda sent: sent.add_(1))
        assert torch.equal(found, kept + 1)
        assert torch.equal(x, kept)


def values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Return what a rank has: in every part some NaN that the other has not."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(SHAPE, generator=generator, dtype=torch.float64).to(dtype)
    x[:, rank] = nan
    x[:, 2] = -inf
    return x


def join() -> bool:
    """Join what the two ranks have in every way; return whether all of it is right."""
    groups, hardware = bind(MESH, "cpu"), load_hardware("h200")
    here = groups.coordinates
    for reduction, after in product(("max", "min"), ("(B)", "(S(0))", "(S(1))")):
        pair = Placement.parse(f"(P({reduction}))"), Placement.parse(after)
        extreme = torch.amax if reduction == "max" else torch.amin
        for dtype in (*FLOATS, torch.float16, torch.bfloat16):
            own = values(groups.rank, dtype)
            every = torch.stack([values(rank, dtype) for rank in range(2)])
            want = take_shard(extreme(every, 0), pair[1], MESH, here)
            found = [reshard(own, SHAPE, *pair, groups)]
            if dtype in FLOATS:
                case = BoxingCase.of(TensorType(SHAPE, dtype), pair, MESH, hardware)
                program = bind_program(case.program(here), groups)
                with count_collectives() as counted:
                    (made,) = program.run({X: own})
                assert made is not None
                found.append(made)
                told = [(str(c.kind), c.ranks, c.payload_bytes) for c in counted]
                assert told == list(expected(case, groups.rank))
            for made in found:
                torch.testing.assert_close(made, want, rtol=0, atol=0, equal_nan=True)
    norms = [torch.tensor(nan if groups.rank == at else 2.0) for at in range(2)]
    return all(bool(over_all_ranks(norm, inf).isnan()) for norm in norms)


@pytest.mark.dist
def test_it_is_not_lost_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    assert launch(f"{__file__}:join", 2) == [True, True]
