"""What a rank does on CUDA, seen on a machine that has none.

Programs are bound to the device type cuda and run on tensors without values, in a
process group that sends nothing: where each tensor would be made is real, and so is
what would make the host wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from tests.models.searched import searched
from tests.models.zoo import ZOO, tensor_parallel_pins
from tests.slow import slow
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from partita.compiler.capture import attention
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.efficient_attention import (
    cuda_efficient_attention,
    cuda_efficient_attention_backward,
)
from partita.compiler.capture.flash_attention import (
    cuda_flash_attention,
    cuda_flash_attention_backward,
)
from partita.compiler.capture.inputs import name_leaves
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.inputs import to_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.runtime.batch import BatchSpec
from partita.runtime.groups import Groups, bind
from partita.runtime.program import ParallelProgram
from partita.runtime.share import StagePrograms

MODELS = ("mlp", "gpt2")
MESHES = {"tp=2": (0, 1), "dp=2,tp=2": (0, 3)}  # and the ranks that are looked at
CASES = [
    (name, mesh, rank) for name in MODELS for mesh in MESHES for rank in MESHES[mesh]
]

pytestmark = pytest.mark.filterwarnings(
    # Fake tensors have none; all look as if they shared it, which costs copies alone.
    "ignore:Accessing the data pointer of FakeTensor:UserWarning"
)

NEEDS_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@dataclass(frozen=True)
class Recorded:
    """What ops ran: where their results were, and which made the host wait."""

    devices: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    waits: list[str] = field(default_factory=list[str])
    groups: set[str] = field(default_factory=set[str])


class Recorder(TorchDispatchMode):
    """Records every op that runs within it, those inside of attention too."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Recorded()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        own = OWN_OPS.get(func)
        if own is not None:
            with self, WithoutGuards():
                return own(*args, **(kwargs or {}))
        found, name, given = self.found, str(func), tensors_of((args, kwargs))
        if needs_values(func, given):
            found.waits.append(name)
        result = func(*args, **(kwargs or {}))
        devices = {t.device.type for t in tensors_of(result)}
        found.devices.setdefault(name, set()).update(devices)
        if "cpu" in devices and any(t.is_cuda for t in given):
            found.waits.append(name)
        if "_c10d_functional" in name and "wait" not in name:
            found.groups.add(args[-1])
        return result


OWN_OPS: dict[Any, Callable[..., Any]] = {
    torch.ops.partita.attention.default: attention.attend,
    torch.ops.partita.attention_backward.default: attention.attend_backward,
}


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def needs_values(func: Any, given: list[torch.Tensor]) -> bool:
    """Tell whether the host must know values, or a shape that depends on them."""
    if func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put):
        return any(t.dtype in (torch.bool, torch.uint8) for t in given[1:])
    return any(tag in func.tags for tag in NEEDS_VALUES)


class WithoutGuards(TorchFunctionMode):
    """Calls ops past Python bindings that want a real CUDA device first."""

    ops: ClassVar[dict[Any, Any]] = {
        torch.Tensor.copy_: torch.ops.aten.copy_.default,
        torch.Tensor.__invert__: torch.ops.aten.bitwise_not.default,
        torch.Tensor.contiguous: torch.ops.aten.contiguous.default,
    }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self.ops.get(func, func)(*args, **(kwargs or {}))


@pytest.fixture
def make_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Groups]]:
    """Return a function that joins a rank to groups in which nobody else is."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)  # pyright: ignore
        monkeypatch.setattr(attention, "_is_ampere", lambda device: True)  # pyright: ignore

    def make(mesh: Mesh, rank: int) -> Groups:
        store = FakeStore()
        dist.init_process_group("fake", store=store, rank=rank, world_size=mesh.size)
        return bind(mesh, "cuda")

    yield make
    if dist.is_initialized():
        dist.destroy_process_group()


@lru_cache(maxsize=1)
def captured(name: str) -> Captured:
    model, args, kwargs = ZOO[name]()
    return capture(model, args, kwargs)


@lru_cache(maxsize=4)
def tensor_parallel_plan(name: str, mesh: str) -> Plan:
    model, _, _ = ZOO[name]()
    pins = tensor_parallel_pins(model, Mesh.parse(mesh).ndim)
    options = Options(hardware="cpu-gloo-free", pins=pins, fuse=False)
    return searched(Planner(captured(name), name, Mesh.parse(mesh), options))


def run_step(
    name: str, plan: Plan, groups: Groups, batch_on: str
) -> tuple[ParallelProgram, Recorded]:
    """Run a step on tensors without values; return what it did."""
    model, args, kwargs = ZOO[name]()
    lowered = Lowered.of(captured(name), plan, default_rules)
    local = lowered.at(groups.coordinates)
    spec = BatchSpec(partial(name_leaves, model), to_capture(plan.inputs).leaves)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, WithoutGuards():
        program = ParallelProgram({0: StagePrograms(local, groups)}, model, spec)

        def without_values(x: torch.Tensor) -> torch.Tensor:
            with fake:
                return torch.empty(x.shape, dtype=x.dtype, device=batch_on)

        args, kwargs = pytree.tree_map_only(
            torch.Tensor, without_values, (args, kwargs)
        )
        with Recorder() as recorder:
            loss = program.step(*args, **kwargs)
            program.clip_grad_norm_(1.0)
    assert loss.is_cuda
    return program, recorder.found


@pytest.mark.parametrize(
    ("name", "mesh", "rank"),
    [slow(*case) if case[:2] == ("gpt2", "tp=2") else case for case in CASES],
)
def test_step_stays_on_the_gpu(
    name: str, mesh: str, rank: int, make_groups: Callable[..., Groups]
) -> None:
    plan = tensor_parallel_plan(name, mesh)
    groups = make_groups(plan.mesh, rank)
    program, found = run_step(name, plan, groups, batch_on="cuda:0")
    assert groups.device_mesh.device_type == "cuda"
    assert found.groups
    assert found.groups <= set(groups.names.values())
    elsewhere = {
        op: devices for op, devices in found.devices.items() if devices - {"cuda"}
    }
    assert elsewhere == {}
    assert found.waits == []
    held = [*program.parameters(), *(b for _, b in program.named_buffers())]
    assert all(t.is_cuda for t in held)
    assert all(p.grad is not None and p.grad.is_cuda for p in program.parameters())


def test_only_the_cut_of_a_batch_in_main_memory_is_made_there(
    make_groups: Callable[..., Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[torch.Size] = []

    def pin(x: torch.Tensor) -> torch.Tensor:
        pinned.append(x.shape)
        return x

    monkeypatch.setattr(FakeTensor, "pin_memory", pin, raising=False)
    plan = tensor_parallel_plan("gpt2", "dp=2,tp=2")
    _, found = run_step("gpt2", plan, make_groups(plan.mesh, 0), batch_on="cpu")
    on_cpu = {op for op, devices in found.devices.items() if "cpu" in devices}
    assert on_cpu == {"aten.slice.Tensor", "aten.clone.default"}
    assert pinned
    assert found.waits == []


WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "copy": lambda x: x.to("cpu"),
    "number": lambda x: x.sum().item(),
    "condition": lambda x: bool(x.sum() > 0),
    "nonzero": torch.ops.aten.nonzero.default,
    "mask": lambda x: torch.ops.aten.index.Tensor(x, [x > 0]),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_makes_the_host_wait_is_seen(name: str) -> None:
    recorder = Recorder()
    with FakeTensorMode():
        x = torch.empty(4, device="cuda:0")
        with suppress(RuntimeError), WithoutGuards(), recorder:  # there are no values
            WAITING[name](x)
    assert recorder.found.waits


@pytest.mark.parametrize("num_key_heads", [1, 4])
def test_flash_attention_gives_what_attention_promises(num_key_heads: int) -> None:
    """The kernels' own types; that their numbers are right, test_gpu.py shows."""
    with FakeTensorMode():
        query = torch.empty(2, 4, 16, 32, dtype=torch.bfloat16, device="cuda:0")
        key = query.new_empty(2, num_key_heads, 16, 32)
        promised = torch.ops.partita.attention(query, key, key, None, True, 0.5)
        keys = key.expand(query.shape)
        found = cuda_flash_attention(query, keys, keys, True, 0.5)
        for a, b in zip(promised, found, strict=True):
            assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        out, lse = found
        grads = cuda_flash_attention_backward(
            out, query, keys, keys, out, lse, True, 0.5
        )
        assert all(g.shape == query.shape and g.dtype == query.dtype for g in grads)


@pytest.mark.parametrize("shape", [(2, 1, 1, 19), (17, 19), (2, 4, 17, 1), None])
def test_efficient_attention_gives_what_attention_promises(
    shape: tuple[int, ...] | None,
) -> None:
    with FakeTensorMode():
        query = torch.empty(2, 4, 17, 32, device="cuda:0")
        key = query.new_empty(2, 4, 19, 32)
        mask = None if shape is None else query.new_empty(shape)
        args = query, key, key
        promised = torch.ops.partita.attention(*args, mask, False, 0.5)
        found = cuda_efficient_attention(*args, mask, False, 0.5)
        for a, b in zip(promised, found, strict=True):
            assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        out, lse = found
        grads = cuda_efficient_attention_backward(
            out, *args, out, lse, mask, False, 0.5
        )
        assert [g.shape for g in grads] == [x.shape for x in args]


def test_flash_attention_is_given_and_gives_tensors_as_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads are inside of the sequence, as products make them and kernels want them."""
    monkeypatch.setattr(attention, "_is_ampere", bool)

    def attended(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(2, 16, 4, 32).transpose(1, 2)
        out, lse = attention.attend(heads, heads, heads, None, True, 0.5)
        args = heads, heads, heads, heads, None, out, lse, True, 0.5
        return out + sum(attention.attend_backward(*args))

    with FakeTensorMode(), WithoutGuards():
        x = torch.empty(2, 16, 128, dtype=torch.bfloat16, device="cuda:0")
        graph = make_fx(attended)(x).graph
    called = {str(node.target) for node in graph.nodes}
    assert "aten._scaled_dot_product_flash_attention_backward.default" in called
    assert "aten.clone.default" not in called
