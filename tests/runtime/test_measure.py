from typing import Any

import pytest
import torch
import torch.distributed as dist
from local_programs import c10d, collective_program

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind
from partita.runtime.executor import bind_program
from partita.runtime.groups import bind
from partita.runtime.launch import launch
from partita.runtime.measure import Collective, count_collectives

pytestmark = pytest.mark.dist


def run_collectives() -> dict[str, Any]:
    mesh = Mesh(dp=1, tp=2)
    groups = bind(mesh, "cpu")
    mine = [1, 3] if groups.rank == 0 else [3, 1]
    calls = [
        (c10d.all_reduce.default, "sum", "stage0/tp"),
        (c10d.all_gather_into_tensor.default, 2, "stage0/tp"),
        (c10d.reduce_scatter_tensor.default, "max", 2, "stage0/tp"),
        (c10d.all_to_all_single.default, mine, mine, "stage0/tp"),
        (c10d.all_reduce.default, "min", "stage0/dp"),
    ]
    local = collective_program(mesh, groups.coordinates, *calls)
    executable = bind_program(local, groups)
    x = 10.0 * groups.rank + torch.arange(4.0)
    dist.all_reduce(x.clone())  # before the block: not counted
    with count_collectives() as found:
        outputs = executable.run({(InputKind.INPUT, "x"): x})
        dist.barrier()
        dist.all_reduce(torch.ones(3, dtype=torch.bfloat16))
    with count_collectives() as none:
        x.sum()
    return {"found": found, "none": none, "outputs": outputs}


def test_collectives_are_counted_as_they_ran() -> None:
    for rank, result in enumerate(launch(f"{__file__}:run_collectives", 2)):
        both, alone = (0, 1), (rank,)
        assert result["found"] == [
            Collective("all_reduce", both, 16, "gloo:all_reduce"),
            Collective("all_gather", both, 16, "gloo:all_gather"),
            Collective("reduce_scatter", both, 16, "gloo:all_reduce"),
            Collective("all_to_all", both, 16, "gloo:all_to_all"),
            Collective("all_reduce", alone, 16, "gloo:all_reduce"),
            Collective("barrier", both, 0, "gloo:barrier"),
            Collective("all_reduce", both, 6, "gloo:all_reduce"),
        ]
        assert result["none"] == []
        mine = 10 * rank + torch.arange(4.0)
        want = [
            [10.0, 12.0, 14.0, 16.0],
            [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0],
            [10.0, 11.0] if rank == 0 else [12.0, 13.0],
            [0.0, 10.0, 11.0, 12.0] if rank == 0 else [1.0, 2.0, 3.0, 13.0],
            mine.tolist(),
        ]
        assert [output.tolist() for output in result["outputs"]] == want


def count(num: int) -> list[Collective]:
    with count_collectives() as found:
        for _ in range(num):
            dist.all_reduce(torch.ones(1))
    return found


def count_too_many() -> str:
    bind(Mesh(dp=2), "cpu")
    with pytest.raises(RuntimeError) as raised:
        count(9)
    return str(raised.value)


def test_a_recorder_that_is_too_small_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "4")
    message = "9 collectives were called and 4 recorded; start the ranks with "
    (first, _) = launch(f"{__file__}:count_too_many", 2)
    assert first.startswith(message + "TORCH_FR_BUFFER_SIZE=2018")
