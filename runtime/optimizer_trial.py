"""Whether an optimizer may update shards, found by trying it on small tensors.

It may where the update of a part is that part of the update. So it takes some steps on
small tensors that are whole, and on halves of them, cut along the dims that the
program's parameters are; what comes of both must be the same. One that takes a norm of
a parameter, factors its second moment or orthogonalizes an update differs at once.

In a pipeline each small tensor is stepped alone, too: no rank has all parameters.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from partita.compiler.capture.torch_private import (
    OPTIMIZER_HOOKS,
    STEP_PRE_HOOKS,
    untraced,
)
from partita.compiler.errors import BadOptions
from partita.compiler.ir.sbp import Split
from partita.runtime.marked_tensor import plainly
from partita.runtime.optimizer_state import OF_RANK
from partita.runtime.shard_gradient import ShardGradient
from partita.runtime.state import Held

_SIZE = 4  # of every dim of a small tensor
_NUM_STEPS = 12
_LR = 0.03  # a schedule may begin at 0, with which nothing would be seen
_TOLERANCE = 1e-3  # kernels may round the last elements of a tensor in another way

_Pieces = Mapping[int, tuple[slice, ...]]
"""What a rank has of small tensors, by their number."""


@dataclass(frozen=True)
class _Small:
    """What stands for the parameters of a group that are cut alike."""

    group: int
    like: nn.Parameter
    cut: frozenset[int]


class OptimizerTrials:
    """Tries each optimizer over parameters of a program when it first steps.

    Args:
        held: the program's parameters on this rank.
        is_alone: whether there are no other stages.
    """

    def __init__(self, held: Sequence[Held], *, is_alone: bool) -> None:
        self._owners = {id(entry.shard): entry for entry in held}
        self._is_alone = is_alone
        self._tried = weakref.WeakKeyDictionary[Optimizer, tuple[int, ...]]()
        self._of_rank = weakref.WeakSet[Optimizer]()
        this = weakref.ref(self)

        @untraced  # the loop around a step may be compiled
        def stepping(optimizer: Optimizer, *_: Any) -> None:
            trials = this()
            if trials is not None:
                trials.of(optimizer)
                # What hooks of its own see, which come later, is still marked: they
                # may clip by the norm of all gradients.
                if not getattr(optimizer, STEP_PRE_HOOKS):
                    plainly(_with_plain_gradients, (optimizer,))

        weakref.finalize(self, register_optimizer_step_pre_hook(stepping).remove)

    def of(self, optimizer: Optimizer) -> None:
        """Try an optimizer, unless its groups are those that were tried.

        Its state is looked at each time: it may have been loaded since.

        Raises:
            BadOptions: where it may not update what this rank has, or has state of
                what another has.
        """
        groups = tuple(len(group["params"]) for group in optimizer.param_groups)
        if self._tried.get(optimizer) != groups:
            if check_optimizer(optimizer, self._owners, is_alone=self._is_alone):
                self._of_rank.add(optimizer)
            self._tried[optimizer] = groups
        if optimizer in self._of_rank:
            _mark(optimizer)


def check_optimizer(
    optimizer: Optimizer, owners: Mapping[int, Held], *, is_alone: bool = True
) -> bool:
    """Check that ``optimizer`` does on this rank's shards what it does on the whole.

    Args:
        optimizer: tried on a copy; it stays as it is.
        owners: the program's parameters on this rank, by the shard's id.
        is_alone: whether there are no other stages, with other parameters.

    Returns:
        Whether its state is of this rank alone.

    Raises:
        BadOptions: where it does not, or cannot be tried.
    """
    smalls = list(_smalls(optimizer, owners))
    if not smalls or (is_alone and not any(small.cut for small in smalls)):
        return False
    check_gradients_suffice(optimizer)
    name = type(optimizer).__name__
    whole = {i: _whole(small) for i, small in enumerate(smalls)}
    devices = {s.like.device.index for s in smalls if s.like.is_cuda}
    with torch.random.fork_rng(sorted(devices)):
        try:
            want = _stepped(optimizer, smalls, whole)
            for pieces in _ranks(smalls, whole, is_alone):
                found = _stepped(optimizer, smalls, pieces)
                for i, value in found.items():
                    if not _is_close(value, want[i][pieces[i]]):
                        raise BadOptions(_why_not(name, smalls[i]))
        except BadOptions:
            raise
        except Exception as error:
            raise BadOptions(
                f"{name} cannot be tried on small tensors, so that it may update "
                f"parts of parameters ({type(error).__name__}: {error}); want an "
                "elementwise optimizer, such as AdamW"
            ) from error
    return True


def check_gradients_suffice(optimizer: Optimizer) -> None:
    """Check that ``optimizer`` steps by the gradients that it finds.

    Raises:
        BadOptions: for one that evaluates the loss by itself.
    """
    if evaluates_loss(optimizer):
        raise BadOptions(
            f"{type(optimizer).__name__}.step wants a closure that evaluates the loss: "
            "only elementwise optimizers, such as AdamW, work on shards"
        )


def evaluates_loss(optimizer: Optimizer) -> bool:
    """Whether a step of ``optimizer`` wants a closure that evaluates the loss."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _with_plain_gradients(optimizer: Optimizer) -> None:
    """Have the step see plain tensors: others take longer, for each of its ops.

    Run plainly, since a call for each gradient would take as long as the update.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if type(gradient) is ShardGradient:
                parameter.grad = gradient.as_subclass(torch.Tensor)


def _mark(optimizer: Optimizer) -> None:
    """Have the optimizer's own ``state_dict`` say which rank's shards it is of.

    Raises:
        BadOptions: where it was given that of another rank.
    """
    here = dist.get_rank()
    for group in optimizer.param_groups:
        rank = group.setdefault(OF_RANK, here)
        if rank != here:
            raise BadOptions(
                f"optimizer: its state was saved by rank {rank}, with the parts that "
                f"rank has, and this is rank {here}; want "
                "program.optimizer_state_dict(optimizer), saved by "
                "torch.distributed.checkpoint"
            )


def _why_not(name: str, small: _Small) -> str:
    if not small.cut:
        return (
            f"{name} updates a parameter by others too, of which this rank does not "
            "have all; want an elementwise optimizer, such as AdamW"
        )
    return (
        f"{name} does not update a part of a parameter as it does the whole, and this "
        f"rank has a part of one, of shape {list(small.like.shape)}; want an "
        "elementwise optimizer, such as AdamW, or pins that keep parameters whole"
    )


def _smalls(optimizer: Optimizer, owners: Mapping[int, Held]) -> Iterator[_Small]:
    """Yield one of each kind of parameter that is optimized."""
    seen: set[Any] = set()
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            entry = owners.get(id(parameter))
            if entry is None or not parameter.requires_grad:
                continue
            axes = zip(entry.placement.shardings, entry.groups.mesh.sizes, strict=True)
            cut = frozenset(
                sharding.dim
                for sharding, size in axes
                if isinstance(sharding, Split) and size > 1
            )
            kind = number, parameter.ndim, parameter.dtype, cut
            if kind not in seen:
                seen.add(kind)
                yield _Small(number, parameter, cut)


def _whole(small: _Small) -> tuple[slice, ...]:
    return (slice(0, _SIZE),) * small.like.ndim


def _ranks(
    smalls: Sequence[_Small], whole: _Pieces, is_alone: bool
) -> Iterator[_Pieces]:
    """Yield what one rank may have of the small tensors."""
    halves = slice(0, _SIZE // 2), slice(_SIZE // 2, _SIZE)
    for dim in sorted({dim for small in smalls for dim in small.cut}):
        for half in halves:
            yield {
                i: (*whole[i][:dim], half, *whole[i][dim + 1 :])
                if dim in small.cut
                else whole[i]
                for i, small in enumerate(smalls)
            }
    if not is_alone:
        for i in whole:
            yield {i: whole[i]}


def _stepped(
    optimizer: Optimizer, smalls: Sequence[_Small], pieces: _Pieces
) -> dict[int, torch.Tensor]:
    """Return what pieces of the small tensors are after some steps."""
    generator = torch.Generator().manual_seed(0)
    values = [_drawn(small, generator) for small in smalls]
    parameters = {
        i: nn.Parameter(values[i][piece].contiguous()) for i, piece in pieces.items()
    }
    copied = _copied(optimizer, smalls, parameters)
    for _ in range(_NUM_STEPS):
        gradients = [_drawn(small, generator) for small in smalls]
        for i, parameter in parameters.items():
            parameter.grad = gradients[i][pieces[i]].contiguous()
        type(copied).step(copied)  # an instance's own may be a scheduler's, that counts
    return {i: parameter.detach() for i, parameter in parameters.items()}


def _drawn(small: _Small, generator: torch.Generator) -> torch.Tensor:
    """Return values of which one half is far from the other, along every dim."""
    shape = (_SIZE,) * small.like.ndim
    sizes = torch.logspace(-1, 1, _SIZE ** len(shape), dtype=torch.float64)
    drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
    return (drawn * sizes.view(shape)).to(small.like)


def _copied(
    optimizer: Optimizer,
    smalls: Sequence[_Small],
    parameters: Mapping[int, nn.Parameter],
) -> Optimizer:
    """Return an optimizer like this one that has not stepped, over ``parameters``.

    What it has besides groups and state is copied, its parameters replaced.
    """
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            parameter.detach().reshape(-1)[:0], parameter.requires_grad
        )
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    memo |= {id(smalls[i].like): parameter for i, parameter in parameters.items()}
    copied = object.__new__(type(optimizer))
    for key, value in vars(optimizer).items():
        if key.startswith(OPTIMIZER_HOOKS):
            vars(copied)[key] = OrderedDict[int, Any]()  # what hooks do is not undone
        elif key not in ("step", "state", "param_groups"):
            vars(copied)[key] = copy.deepcopy(value, memo)
    copied.state = defaultdict[torch.Tensor, Any](dict)
    for i, parameter in parameters.items():
        if optimizer.state.get(smalls[i].like):
            state = optimizer.state[smalls[i].like]
            copied.state[parameter] = _state_like(state, smalls[i], parameter)
    copied.param_groups = []
    for number, group in enumerate(optimizer.param_groups):
        own = {k: copy.deepcopy(x, memo) for k, x in group.items() if k != "params"}
        if "lr" in own:
            lr = own["lr"]
            is_tensor = isinstance(lr, torch.Tensor)
            own["lr"] = torch.full_like(lr, _LR) if is_tensor else _LR
        own["params"] = [p for i, p in parameters.items() if smalls[i].group == number]
        copied.param_groups.append(own)
    return copied


def _state_like(
    state: Mapping[str, Any], small: _Small, parameter: nn.Parameter
) -> dict[str, Any]:
    """Return what an optimizer has made at once, for a small tensor.

    Where it has more than values by element and numbers, it is to begin without.
    """
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.ndim:
            if value.shape != small.like.shape:
                return {}
            found[key] = torch.zeros_like(parameter, dtype=value.dtype)
            if value.numel():
                found[key].fill_(value.flatten()[0])
        else:
            found[key] = copy.deepcopy(value)
    return found


def _is_close(found: torch.Tensor, want: torch.Tensor) -> bool:
    tolerance = max(_TOLERANCE, 4 * torch.finfo(found.dtype).eps)
    return torch.allclose(found, want, rtol=tolerance, atol=tolerance * _LR)
