"""What no CUDA graph is recorded of; replays are seen on a GPU, in e2e/test_gpu.py."""

import pytest
import torch
from tests.models.zoo import ZOO

import partita as pt
from partita.compiler.errors import BadOptions
from partita.runtime.replayed import check_replayable


@pytest.mark.parametrize(
    ("mesh", "microbatches", "device", "why"),
    [
        ("dp=1", 1, "cpu", "the program runs on 'cpu'"),
        ("dp=2,tp=2", 1, "cuda", "the plan is for the 4 ranks of dp=2,tp=2"),
        ("dp=1", 3, "cuda", "the plan cuts the batch into 3 microbatches"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    mesh: str, microbatches: int, device: str, why: str
) -> None:
    with pytest.raises(BadOptions) as refused:
        check_replayable(pt.Mesh.parse(mesh), microbatches, torch.device(device))
    assert why in str(refused.value)


def test_one_rank_on_a_gpu_is_not() -> None:
    check_replayable(pt.Mesh(dp=1), 1, torch.device("cuda", 0))


def test_a_program_on_a_cpu_is_refused_when_it_is_compiled() -> None:
    model, args, kwargs = ZOO["mlp"]()
    plan = pt.plan(model, *args, mesh=pt.Mesh(dp=1), **kwargs)
    with pytest.raises(BadOptions, match="the program runs on 'cpu'; choose 'whole'"):
        pt.compile(model, plan, device="cpu", compilation="cuda-graph")
