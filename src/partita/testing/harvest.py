"""Collect real calls of ATen ops: what eager code calls, forward and backward.

A dispatch mode sees every op that runs, those of autograd's formulas included, and
keeps each distinct call with copies of its tensors. What capture would rewrite is
brought into the same form, so that the calls are those that the rule table is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, cast

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from partita.compiler.capture.canonicalize import canonicalize
from partita.compiler.capture.decompositions import FROM_TORCH, OWN
from partita.compiler.capture.draws import draws_numbers
from partita.compiler.capture.schemas import writes_in_place
from partita.compiler.capture.torch_private import DispatchMode
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    Program,
    set_info,
)
from partita.compiler.ir.tensor_type import TensorType
from partita.testing.prover import Sample

MAX_NUMEL = 4096
"""Calls on larger tensors are left out: they prove nothing that smaller ones do not."""

DTYPES = (torch.float64, torch.float32, torch.int64, torch.bool)
"""What samples are asked for in, where an op supports it."""

_KNOWN = frozenset(
    (*DTYPES, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
) | {torch.int32, torch.int16, torch.int8, torch.uint8}


class SampleInput(Protocol):
    """One call of an op of torch's database, as torch states it."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class OpInfo(Protocol):
    """An entry of torch's database of ops (``op_db``)."""

    name: str
    supports_autograd: bool

    def supported_dtypes(self, device_type: str) -> Iterable[torch.dtype]:
        """Return the dtypes that the op takes on a device."""
        ...

    def sample_inputs(
        self, device: str, dtype: torch.dtype, requires_grad: bool = False
    ) -> Iterable[SampleInput]:
        """Return calls on random tensors."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op."""
        ...


_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""What torch raises for samples that it does not run on this device after all."""


@dataclass
class Harvest:
    """What was collected.

    Attributes:
        samples: distinct calls in canonical form, by op.
        left_out: how many distinct calls are none of the table's, by reason.
        failed: samples that torch itself does not run, by entry of the database.
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict[str, list[Sample]])
    left_out: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])

    @property
    def num_calls(self) -> int:
        """The number of distinct calls."""
        return sum(len(samples) for samples in self.samples.values())


class Recorder(DispatchMode):
    """Keeps the distinct calls that are made within it.

    Args:
        harvest: where they go.
        per_op: of how many forms of its arguments an op's calls are kept at most.
    """

    def __init__(self, harvest: Harvest, per_op: int) -> None:
        super().__init__()
        self._harvest = harvest
        self._per_op = per_op
        self._seen: set[object] = set()
        self._num: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        key = _key(func, args, kwargs)
        is_new = key is not None and key not in self._seen
        if key is not None and is_new:
            self._seen.add(key)
        if not is_new or self._num[str(func)] >= self._per_op:
            return func(*args, **kwargs)
        if reason := _why_not(func, args, kwargs):
            self._harvest.left_out[reason] += 1
            return func(*args, **kwargs)
        kept_args, kept_kwargs = _copied((args, kwargs))
        result = func(*args, **kwargs)
        self._num[str(func)] += 1
        self._keep(func, kept_args, kept_kwargs, result)
        return result

    def _keep(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        results = result if isinstance(result, tuple | list) else (result,)
        if not any(isinstance(x, Tensor) for x in results):
            self._harvest.left_out["returns no tensor"] += 1
            return
        sample = canonical(func, args, kwargs, tuple(results))
        if sample is None:
            self._harvest.left_out["capture drops it"] += 1
        else:
            self._harvest.samples.setdefault(sample.op, []).append(sample)


_TAKEN_APART = {str(packet) for packet in FROM_TORCH} | {str(op) for op in OWN}


def _why_not(func: Any, args: Any, kwargs: Any) -> str:
    """Return why a call cannot reach the table; "" where it can."""
    op = str(func)
    if not op.startswith("aten."):
        return "is no ATen op"
    if writes_in_place(func):
        return "writes in place; capture has its functional twin"
    if draws_numbers(func):
        return "draws random numbers; capture rewrites it"
    if op in _TAKEN_APART or op.rpartition(".")[0] in _TAKEN_APART:
        return "capture takes it apart"
    tensors = _tensors((args, kwargs))
    if any(x.layout is not torch.strided or x.dtype not in _KNOWN for x in tensors):
        return "sparse, quantized or of an uncommon dtype"
    if any(x.numel() > MAX_NUMEL for x in tensors):
        return "large"
    return ""


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            found.append(leaf)
        return leaf

    map_aggregate(value, visit)
    return found


def _copied(value: Any) -> Any:
    # Bits that say "conjugated" or "negated" are another call's business.
    def visit(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().resolve_conj().resolve_neg().clone()
        return leaf

    return map_aggregate(value, visit)


def _key(func: Any, args: Any, kwargs: Any) -> object | None:
    """Return what tells distinct calls apart; ``None`` for unhashable arguments."""

    def freeze(value: Any) -> Any:
        if isinstance(value, Tensor):
            return (tuple(value.shape), value.dtype)
        if isinstance(value, tuple | list):
            return tuple(freeze(item) for item in cast("list[Any]", value))
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return tuple((name, freeze(item)) for name, item in items)
        return (type(value), str(value))  # 1, 1.0 and True are not the same call

    return (str(func), freeze(args), freeze(kwargs))


def canonical(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[Any, ...]
) -> Sample | None:
    """Return a call as capture would write it; ``None`` where nothing is left of it.

    Args:
        func: the op, an ATen overload.
        args: its positional arguments, with real tensors.
        kwargs: its named ones.
        results: what it returned.
    """
    graph = fx.Graph()
    tensors: list[Tensor] = []
    inputs: list[InputRole] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        name = f"x{len(tensors)}"
        node = graph.placeholder(name)
        set_info(node, NodeInfo(name, Phase.FORWARD, (_type(leaf),)))
        tensors.append(leaf)
        inputs.append(InputRole(InputKind.INPUT, name))
        return node

    call_args, call_kwargs = map_aggregate((args, kwargs), place)
    node = graph.call_function(func, call_args, call_kwargs)
    types = tuple(_type(x) if isinstance(x, Tensor) else None for x in results)
    set_info(node, NodeInfo("call", Phase.FORWARD, types))
    graph.output((node,))
    program = Program(
        fx.GraphModule({}, graph),
        tuple(inputs),
        (OutputRole(OutputKind.OUTPUT, "result"),),
    )
    program = canonicalize(program)
    placed = [placeholder for placeholder, _ in program.placeholders()]
    values = dict(zip(placed, tensors, strict=True))
    calls = list(program.calls())
    if len(calls) != 1:
        return None
    (call,) = calls
    found_args, found_kwargs = map_aggregate(
        (call.args, call.kwargs),
        lambda leaf: values[leaf] if isinstance(leaf, fx.Node) else leaf,
    )
    return Sample(str(call.target), found_args, dict(found_kwargs))


def _type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), tensor.dtype)


def harvest(
    ops: Iterable[OpInfo],
    *,
    dtypes: Iterable[torch.dtype] = DTYPES,
    per_dtype: int = 24,
    per_op: int = 40,
    report: Callable[[str], None] = lambda _: None,
) -> Harvest:
    """Run samples of every op of a database, forward and backward; keep their calls.

    Args:
        ops: torch's database, ``op_db``.
        dtypes: what samples are made in.
        per_dtype: how many samples of an entry are run in each of them at most.
        per_op: how many distinct calls of an ATen op are kept at most.
        report: is told the name of each entry.
    """
    found = Harvest()
    recorder = Recorder(found, per_op)
    for op in ops:
        report(op.name)
        supported = set(op.supported_dtypes("cpu"))
        for dtype in dtypes:
            if dtype not in supported:
                continue
            torch.manual_seed(0)
            needs_grad = op.supports_autograd and dtype.is_floating_point
            samples = op.sample_inputs("cpu", dtype, requires_grad=needs_grad)
            for sample in _small(islice(samples, per_dtype)):
                try:
                    _run(op, sample, recorder)
                except _REFUSALS:
                    found.failed[op.name] += 1
    return found


def _small(samples: Iterable[SampleInput]) -> Iterator[SampleInput]:
    for sample in samples:
        tensors = _tensors((sample.input, tuple(sample.args), dict(sample.kwargs)))
        if all(x.numel() <= MAX_NUMEL for x in tensors):
            yield sample


def _run(op: OpInfo, sample: SampleInput, recorder: Recorder) -> None:
    with recorder:
        result = op(sample.input, *sample.args, **sample.kwargs)
    outputs = [x for x in _tensors((result,)) if x.requires_grad and x.numel()]
    given = _tensors((sample.input, tuple(sample.args), dict(sample.kwargs)))
    leaves = [x for x in given if x.requires_grad]
    if outputs and leaves:
        grads = [torch.randn_like(x) for x in outputs]
        with recorder:
            torch.autograd.grad(outputs, leaves, grads, allow_unused=True)
