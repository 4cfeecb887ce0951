"""Everything private of torch that Partita uses, in one place.

An upgrade of torch that moves one of these names breaks this file alone. Each
function or name says in one line what it stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest.mock import patch

import torch
from torch import fx
from torch._C import (
    _distributed_c10d,
    _get_mkldnn_enabled,  # pyright: ignore[reportPrivateUsage]
    _set_mkldnn_enabled,  # pyright: ignore[reportPrivateUsage]
)
from torch._compile import _disable_dynamo  # pyright: ignore[reportPrivateUsage]
from torch._decomp import decompositions, get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd import descriptors
from torch._guards import TracingContext, tracing
from torch._higher_order_ops import effects
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import graph as fx_graph
from torch.fx import traceback as fx_traceback
from torch.fx._lazy_graph_module import (
    _LazyGraphModule,  # pyright: ignore[reportPrivateUsage]
    _use_lazy_graph_module,  # pyright: ignore[reportPrivateUsage]
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules import batchnorm, transformer
from torch.utils import _pytree as pytree
from torch.utils import checkpoint
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)

from partita.compiler.capture.spelling import spell_attribute

_Function = TypeVar("_Function", bound=Callable[..., Any])

__all__ = ["decompositions", "descriptors", "get_decompositions", "pytree"]


OPTIMIZER_HOOKS, STEP_PRE_HOOKS = "_optimizer_", "_optimizer_step_pre_hooks"
"""How attributes begin in which an optimizer keeps hooks; its own before a step."""
GRADIENT_HOOKS, LEFT_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"
"""Where a tensor keeps hooks: on its gradient, and for when ``.grad`` has it."""
MODULE_HOOKS = GRADIENT_HOOKS, "_backward_pre_hooks"
"""Where a module keeps those on the gradients of what it is given and returns."""


def untraced(function: _Function) -> _Function:
    """Return ``function`` as it runs under ``torch.compile`` too: op by op."""
    return cast(_Function, _disable_dynamo(function))


@contextmanager
def seen_as_export() -> Generator[None]:
    """Within it models that ask whether they are being exported are told so.

    They then leave out what depends on values, such as a warning about padding.
    """
    flags = dict.fromkeys(("_is_compiling_flag", "_is_exporting_flag"), True)
    with patch.multiple(torch.compiler, **flags):
        yield


def export_joint(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    taken_apart: Mapping[Any, Callable[..., Any]],
) -> fx.GraphModule:
    """Trace forward and backward of ``module`` into one functional aten graph.

    Placeholders and the output node carry AOTAutograd's descriptors in
    ``meta["desc"]``: which parameter, input, tangent or gradient they are. The ops in
    ``taken_apart`` are made of others, as its functions say. Where gradients are
    switched off there is no backward.
    """
    # Brings Dynamo, which takes half of the time of importing all of Partita.
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    with ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(
            stack, module, inputs, decompositions=dict(taken_apart)
        )
        return joint.graph_module


def load_dynamo() -> None:
    """Import what torch itself does as it first traces, or first makes an optimizer."""
    import torch._dynamo  # pyright: ignore[reportUnusedImport]  # noqa: F401


keeping_notes = fx_traceback.preserve_node_meta
"""Returns a block in which a trace puts its notes into each node."""

notes_of_trace = fx_traceback.get_current_meta
"""Returns these notes, which may be changed."""

python_dispatcher = enable_python_dispatcher
"""Returns a block in which ops made of others are those that Python says."""


def note_backward(loss: torch.Tensor) -> None:
    """Have each op of a trace's backward noted to be of the op that it differentiates.

    Of that op, in ``meta["seq_nr"]``, and of the line that called it; sums of the
    gradients of one tensor are told apart.
    """
    from torch._functorch._aot_autograd import logging_utils

    notes_of_trace()["partitioner_tag"] = "is_backward"
    roots = [node for node in (loss.grad_fn,) if node is not None]
    logging_utils.setup_stacktrace_preservation_hooks(roots)


def note_modules_of_backward(joint: fx.GraphModule) -> None:
    """Note by each op of a backward the module of the op that it differentiates."""
    from torch._functorch._aot_autograd import utils

    utils.copy_fwd_metadata_to_bw_nodes(joint)


def uncompiled(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Return a module of ``graph`` whose Python code is made when it is asked for."""
    return _LazyGraphModule(root, graph)


def take_from_list(module: fx.GraphModule) -> None:
    """Have a module's forward take its inputs out of a list, which it leaves empty."""
    module.graph.set_codegen(vars(fx_graph)["_BoxedCodeGen"]())
    module.recompile()


def without_code() -> AbstractContextManager[None]:
    """Return a block in which code of graphs is made when asked for; most never run."""
    return _use_lazy_graph_module(True)


@contextmanager
def any_name() -> Generator[None]:
    """Within it the code of graphs names modules and tensors whatever they are called.

    Torch writes Python's keywords behind a dot, and quotes other names as they are.
    """
    with patch.object(fx_graph, "_format_target", spell_attribute):
        yield


@contextmanager
def without_mkldnn() -> Generator[None]:
    """Within it recurrent layers are ordinary ops, not one op that only CPUs have."""
    enabled = _get_mkldnn_enabled()
    _set_mkldnn_enabled(False)
    try:
        yield
    finally:
        _set_mkldnn_enabled(enabled)


def around_checkpoints(
    stand_in: Callable[..., Generator[None]],
) -> AbstractContextManager[object]:
    """Return within what ``stand_in`` is around checkpoints that are not reentrant."""
    return patch.object(checkpoint, "_checkpoint_without_reentrant_generator", stand_in)


def around_recurrent_layers(
    stand_in: Callable[..., Callable[..., Any]],
) -> AbstractContextManager[object]:
    """Return within what the function is that takes recurrent layers apart.

    ``stand_in`` is given torch's own.
    """
    name = "_rnn_helper"
    return patch.object(decompositions, name, stand_in(vars(decompositions)[name]))


def unread_masks() -> AbstractContextManager[object]:
    """Return a block in which torch's transformers do not ask whether a mask is causal.

    They take it for a hint, and hand on the mask as well, which says it all.
    """

    def hint(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
        return is_causal is True

    return patch.object(transformer, "_detect_is_causal_mask", hint)


def unvalidated_distributions() -> AbstractContextManager[object]:
    """Return a block in which distributions do not check what they are made of."""
    return patch.object(torch.distributions.Distribution, "_validate_args", False)


def without_order(unordered: Any) -> AbstractContextManager[object]:
    """Return a block in which traces keep no order among calls of an op."""
    has_effects = effects.has_effects

    def is_ordered(op: Any, *others: Any) -> bool:  # some releases give more
        return op is not unordered and has_effects(op, *others)

    return patch.object(effects, has_effects.__name__, is_ordered)


DispatchMode = TorchDispatchMode
"""The class of modes that see every op that eager code runs."""


def below_autograd() -> AbstractContextManager[None]:
    """Return a block in which ops go past autograd: a third less for a small one."""
    return vars(torch)["_C"]._AutoDispatchBelowAutograd()


is_composed = is_traceable_wrapper_subclass
"""Tells whether a tensor is made of others, as those of ``DTensor`` are."""

FakeMode = FakeTensorMode
"""A mode in which tensors have shapes and dtypes, but no values."""


def without_values(tensors: Sequence[torch.Tensor]) -> tuple[FakeMode, list[Any]]:
    """Return a mode and, of it, tensors like ``tensors``, which may be of one."""
    found = [t.fake_mode for t in tensors if isinstance(t, FakeTensor)]
    mode = found[0] if found else FakeTensorMode()
    fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
    return mode, fakes


def static_fake_mode() -> FakeMode:
    """Return a mode in which tensors have types and strides, known ones, no values."""
    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)


Code = Callable[..., Sequence[torch.Tensor | None]]
"""What a graph was compiled to; called as the graph is."""

VectorTrial = Callable[[Any, str], bool]
"""Whether a kind of vector instructions works, as some code with them shows."""


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    mode: FakeMode,
    options: Mapping[str, Any],
) -> Code:
    """Return Inductor's code for a graph of aten ops and functional collectives.

    The graph has its backward already: it goes past dynamo and autograd. The code is
    kept on disk, in the folder ``TORCHINDUCTOR_CACHE_DIR`` names, under a hash of the
    graph, the types of its inputs, the options and the versions.

    Args:
        module: it may write to its inputs; what is left of it is of no use.
        inputs: of ``mode``; the code is right for their shapes and strides alone.
        mode: from ``static_fake_mode``.
        options: of Inductor, by the names of its ``config``.
    """
    compile_fx, node_kind = _inductor()
    with torch.no_grad(), tracing(TracingContext(mode)), _renames_kept(node_kind):
        code: Code = compile_fx(module, list(inputs), config_patches=dict(options))
    return code


def prefers_channels_last(module: fx.GraphModule) -> bool:
    """Whether Inductor takes convolutions of a graph to be faster by channels."""
    from torch._inductor.graph import GraphLowering

    return GraphLowering.decide_layout_opt(module, is_inference=False)


def compiled_folder() -> Path:
    """Return where Inductor keeps code; imports all that ``compile_graph`` needs."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    _inductor()
    return Path(cache_dir())


def around_vector_trials(
    stand_in: Callable[[VectorTrial], VectorTrial],
) -> AbstractContextManager[object]:
    """Return within what the method is that tries out vector instructions.

    It builds code with them and loads it in a process of its own, whenever a process
    has Inductor write C++ code. ``stand_in`` is given torch's own.
    """
    from torch._inductor.cpu_vec_isa import VecISA

    return patch.object(VecISA, "check_build", stand_in(VecISA.check_build))


def cpp_compiler() -> str:
    """Return which C++ compiler Inductor calls, and what that says of itself."""
    from torch._inductor import cpp_builder

    name = cpp_builder.get_cpp_compiler()
    return f"{name}: {cpp_builder.get_compiler_version_info(name)}"


def _inductor() -> tuple[Any, Any]:
    """Import what compiles, and what is patched of it, which most runs do without."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.scheduler import SchedulerNode

    return compile_fx, SchedulerNode


def _renames_kept(kind: Any) -> AbstractContextManager[object]:
    """Have Inductor remember who wrote last to what a node of its schedule reads.

    Torch 2.13 forgets it where the loops of a node are computed anew that waits for
    nothing else: what reads a sum over ranks may then run in front of the sum.
    """
    original = kind.recompute_size_and_body

    def recompute(node: Any, *args: Any, **kwargs: Any) -> None:
        original(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    return patch.object(kind, "recompute_size_and_body", recompute)


BatchNorm = batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]
"""What batch norms of any number of dims are."""

PACK: Any = vars(torch)["_VF"]._pack_padded_sequence
"""What packs padded sequences."""


def tables_of(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of the parameters and buffers that ``module`` itself holds."""
    return vars(module)["_parameters"], vars(module)["_buffers"]


def with_parts(
    module: torch.nn.Module,
    tensor: Callable[[torch.Tensor], torch.Tensor],
    child: Callable[[str, torch.nn.Module], torch.nn.Module],
) -> torch.nn.Module:
    """Return a module like ``module`` around other tensors and other children.

    Whatever is then done to these leaves ``module`` untouched.
    """

    def table(name: str, change: Callable[[str, Any], Any]) -> dict[str, Any]:
        parts = vars(module)[name]
        return {key: x if x is None else change(key, x) for key, x in parts.items()}

    other = module.__new__(type(module))
    other.__dict__.update(
        vars(module),
        _parameters=table("_parameters", lambda _, x: tensor(x)),
        _buffers=table("_buffers", lambda _, x: tensor(x)),
        _modules=table("_modules", child),
    )
    return other


def schema_of(target: object) -> Any:
    """Return what an op takes and returns, as it was registered; ``None`` if no op."""
    return getattr(target, "_schema", None)


_c10d: Mapping[str, Any] = vars(_distributed_c10d)  # not in the stubs

name_group = _c10d["_register_process_group"]
"""Lets functional collectives find a process group by a name, and another one too."""


def begin_gather(x: torch.Tensor, gathered: torch.Tensor, name: str) -> None:
    """Gather by the ``_allgather_base`` of a group; ``gathered`` can be waited for."""
    work = _c10d["_resolve_process_group"](name)._allgather_base(gathered, x)
    _c10d["_register_work"](gathered, work)


def flight_records() -> list[dict[str, Any]]:
    """Return what the backends' flight recorder holds: one record per collective."""
    return json.loads(_c10d["_dump_fr_trace_json"]()).get("entries", [])


def ranks_of_group(name: str) -> tuple[int, ...]:
    """Return the global ranks of the process group of a name; none where it is free."""
    try:
        group = _c10d["_resolve_process_group"](name)
    except RuntimeError:
        return ()
    return tuple(torch.distributed.get_process_group_ranks(group))
