"""Gradients are reduced as soon as they are whole, while stages still go backward.

What real ranks do is written down op by op; that a reduction begins while another stage
is in its last backward is shown by making that wait for it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.models.pipelines import BATCH, WIDTH, Chain
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import partita as pt
from partita.compiler.plan.beside import completed_beside
from partita.compiler.plan.stages import stage_documents
from partita.compiler.search.stage_cost import StageHeld
from partita.runtime.launch import launch
from partita.runtime.measure_memory import measure_step

COUNT = 4
LONGEST_S = 20.0
SENDS = ("all_reduce", "reduce_scatter", "all_to_all")
WAIT = torch.ops._c10d_functional.wait_tensor.default
WAITED = "wait for a reduction"
PRODUCT = "aten.mm.default"
pytestmark = pytest.mark.dist


def is_reduction(op: str) -> bool:
    """Whether an op sends what ranks of a stage add up."""
    namespace, _, name = op.partition(".")
    return namespace == "_c10d_functional" and name.startswith(SENDS)


def built() -> tuple[Chain, tuple[torch.Tensor, torch.Tensor]]:
    """Return a chain of layers and a batch, the same everywhere."""
    torch.manual_seed(0)
    return Chain().double(), (
        torch.randn(BATCH, WIDTH, dtype=torch.float64),
        torch.randn(BATCH, WIDTH, dtype=torch.float64),
    )


def planned(overlap: float, mesh: str = "pp=2,dp=2", **options: Any) -> pt.Plan:
    """Return a plan whose ranks hold all of a stage's parameters."""
    model, batch = built()
    asked = pt.Options(
        microbatches=COUNT,
        hardware=machine(overlap=overlap),
        pins={
            "layers.*/*": "(S(0),)",
            "layers.[1-7]/addmm/0~grad/mm/0": "(S(0),)",
            "layers.*~grad/mm/1": "(P(sum),)",
        },
        bucket=2 * 8 * WIDTH * WIDTH,
        schedule="1f1b",
        time_limit=10.0,
        **options,
    )
    return pt.plan(model, *batch, mesh=mesh, options=asked)


class OpLog(TorchDispatchMode):
    """Writes ops down, and tells others of the first sum by making a file.

    Where ``told`` is a file that others make, the product ``waits_at`` waits for it.
    """

    def __init__(self, tells: Path, told: Path | None, waits_at: int) -> None:
        super().__init__()
        self.tells = tells
        self.told = told
        self.waits_at = waits_at
        self.ops: list[str] = []
        self.sums: set[int] = set()
        self.came = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(func)
        if is_reduction(name) and args[0].numel() > 1:
            self.tells.touch()
        if name == PRODUCT and self.ops.count(PRODUCT) == self.waits_at:
            self._wait()
        if func is WAIT and args[0].data_ptr() in self.sums:
            self.sums.discard(args[0].data_ptr())
            name = WAITED
        self.ops.append(name)
        made = func(*args, **(kwargs or {}))
        if is_reduction(name):
            self.sums.add(made.data_ptr())
        return made

    def _wait(self) -> None:
        end = time.monotonic() + LONGEST_S
        while self.told and not self.told.exists() and time.monotonic() < end:
            time.sleep(0.01)
        self.came = self.told is not None and self.told.exists()


def logged(
    document: dict[str, Any], folder: str, products: int
) -> tuple[list[str], list[str], bool, dict[str, torch.Tensor]]:
    """Run a step; return ops and actions, whether a sum was waited for, parameters.

    The last of the first stage's ``products`` waits for that.
    """
    model, batch = built()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    rank = torch.distributed.get_rank()
    told = Path(folder, "stage1") if rank < 2 else None
    with OpLog(Path(folder, f"stage{rank // 2}"), told, products - 1) as log:
        program.step(*batch)
    torch.optim.SGD(program.parameters(), lr=1.0).step()
    state = {k: v.full_tensor() for k, v in program.state_dict().items()}  # type: ignore[attr-defined]
    return log.ops, list(map(str, program.actions)), log.came, state


def products_of(plan: pt.Plan, stage: int) -> int:
    """Return how many products a stage computes in a step."""
    own = stage_documents(plan)[stage].nodes.values()
    return COUNT * sum(node.op == PRODUCT for node in own)


def check(plan: pt.Plan, folder: Path) -> list[list[str]]:
    """Run a plan on real ranks; return their ops.

    The first stage ends its last backward when the last one has begun to reduce, and
    a step changes parameters as that of one process does.
    """
    what = plan.to_dict(), str(folder), products_of(plan, 0)
    ranks = launch(logged, plan.mesh.size, what, timeout_s=100)
    assert [came for _, _, came, _ in ranks] == [True, True, False, False]
    assert ranks[2][1][-3:] == ["1SEND_B3", "1REDUCE_GRAD", "1UPDATE"]
    model, batch = built()
    model(*batch).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    for _, _, _, state in ranks:
        for name, found in state.items():
            wanted = model.state_dict()[name]
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert {*ranks[0][3], *ranks[2][3]} == {*model.state_dict()}
    for first in (0, 2):  # ranks of one stage sum in one order
        one, other = (
            [op for op in ranks[r][0] if is_reduction(op)] for r in (first, first + 1)
        )
        assert one == other
    return [ops for ops, *_ in ranks]


@pytest.mark.slow
def test_the_last_stage_reduces_while_the_first_goes_backward(tmp_path: Path) -> None:
    plan = planned(overlap=0.0)
    for ops in check(plan, tmp_path):  # one thing at a time
        last = max(at for at, op in enumerate(ops) if op == PRODUCT)
        assert last < min(at for at, op in enumerate(ops) if is_reduction(op))


def test_sums_begin_in_the_last_backward_and_are_waited_for_behind_it(
    tmp_path: Path,
) -> None:
    plan = planned(overlap=0.9)
    first, last = map(completed_beside, stage_documents(plan))
    assert len(first) > 1
    assert not last, "the first stage waits for its backward"
    for rank, ops in enumerate(check(plan, tmp_path)):
        products = [at for at, op in enumerate(ops) if op == PRODUCT]
        sums = [at for at, op in enumerate(ops) if is_reduction(op)]
        waits = [at for at, op in enumerate(ops) if op == WAITED]
        assert len(waits) == len(sums)
        assert waits[0] > products[-1]
        others = len(products) - len(products) // COUNT
        assert sums[0] > products[others - 1], "not before the last microbatch"
        beside = sum(at < products[-1] for at in sums)
        assert beside > 1 if rank < 2 else beside == 0


class Wide(nn.Module):
    """Layers whose gradients are large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 256]``."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def peak_of_step(document: dict[str, Any]) -> int:
    """Return the most that this rank holds during a step."""
    program = pt.compile(Wide(), pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, torch.ones(64, 256)).peak_bytes


@pytest.mark.slow
def test_what_is_sent_beside_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")  # the ranks' profilers are silent
    model, whole = Wide(), "(B,) use=(B,)"
    pins = {name: whole for name, _ in model.named_parameters()} | {"x": "(S(0),)"}
    fast = machine(flops_per_s=1e10, bytes_per_s=1e9, overlap=0.9)
    options = pt.Options(
        microbatches=COUNT, schedule="1f1b", hardware=fast, pins=pins, bucket=0
    )
    plan = pt.plan(model, torch.ones(64, 256), mesh="pp=2,dp=2", options=options)
    what = f"{__file__}:peak_of_step", plan.mesh.size, (plan.to_dict(),)
    measured = max(launch(*what, timeout_s=100))
    held = [StageHeld.of(own) for own in stage_documents(plan)]
    assert measured <= plan.predicted.bytes
    apart = max(own.peak_bytes + own.saved_bytes for own in held)
    assert measured > apart, "else nothing is held more"
