"""A model's own initialisation, one module at a time, the model itself untouched.

What a tensor starts as may be up to the module that holds it (``reset_parameters``)
and to every module around that one: a parent may reset its children's weights, and a
transformers model goes over all of its modules with ``_init_weights``. So for each
module, a copy of the model is made in which that module's own tensors are real and
all others are on the meta device, and the modules on the way to it initialise
themselves from the inside out, as their constructors and then ``post_init`` would.

Random numbers come in another order than in the constructor of a whole model, but in
the same one on every rank.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from partita.compiler.capture.torch_private import tables_of, with_parts
from partita.compiler.errors import BadOptions

_RESET = ("reset_parameters", "_reset_parameters")


def initial_values(
    model: nn.Module, wanted: Mapping[int, str], seed: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the initial values of the parameters and buffers whose ids are wanted.

    ``wanted`` gives the name to use in an error. What is not initialised keeps the
    values it has.

    Raises:
        BadOptions: naming one on the meta device that is not initialised.
    """
    if not wanted:
        return
    left = dict(wanted)
    empty = _without_values(model)
    # Drawn on the CPU, so that it is the same whatever a rank runs on.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for path, module in model.named_modules():
            keys = {name: id(x) for name, x in _own_tensors(module).items()}
            names = [name for name, key in keys.items() if key in left]
            values = _initialised(empty, path) if names else {}
            for name in names:
                value = values.pop(name)
                if _is_unset(value):
                    value = _own_tensors(module)[name].detach()
                if value.is_meta:
                    raise BadOptions(
                        f"init: {left[keys[name]]!r} is on the meta device and has no "
                        f"values; {type(module).__name__}.reset_parameters gives it "
                        "none either; give a state dict or a callable"
                    )
                yield keys[name], value
                del left[keys[name]], value


def _without_values(module: nn.Module) -> nn.Module:
    return with_parts(module, _on_meta, lambda _, child: _without_values(child))


def _initialised(empty: nn.Module, path: str) -> dict[str, torch.Tensor]:
    """Return what the module at ``path`` itself holds, after its initialisation."""
    modules = _on_the_way(empty, path)
    for module in modules:
        for name in _RESET:
            _call(module, name)
    for position, module in enumerate(modules):
        _call_first(modules[position:], "_init_weights", module)
    return _own_tensors(modules[0])


def _on_the_way(empty: nn.Module, path: str) -> list[nn.Module]:
    """Return copies of the modules from the one at ``path``, made real, to the root."""
    steps = path.split(".") if path else []
    around = [empty.get_submodule(".".join(steps[:n])) for n in range(len(steps) + 1)]
    copies = [with_parts(around.pop(), _unset, lambda _, child: child)]
    for step, module in zip(reversed(steps), reversed(around), strict=True):

        def child(name: str, old: nn.Module, step: str = step) -> nn.Module:
            return copies[-1] if name == step else old

        copies.append(with_parts(module, lambda tensor: tensor, child))
    return copies


def _call(module: nn.Module, name: str, *args: Any) -> bool:
    """Call a method, if the module has it and it takes these arguments."""
    method: Callable[..., object] | None = getattr(module, name, None)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*args)
    except TypeError:
        return False
    method(*args)
    return True


def _call_first(modules: Sequence[nn.Module], name: str, *args: Any) -> None:
    for module in modules:
        if _call(module, name, *args):
            return


def _unset(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like ``tensor`` on the CPU that shows where nobody wrote."""
    values = torch.empty_like(tensor, device="cpu", requires_grad=False)
    values.fill_(_mark(tensor.dtype))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values


def _is_unset(tensor: torch.Tensor) -> bool:
    mark = _mark(tensor.dtype)
    marked = tensor.isnan() if mark != mark else tensor == mark
    return bool(marked.any())


def _mark(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return 0 if dtype == torch.bool else torch.iinfo(dtype).min


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or parameter, like ``tensor`` without any values."""
    other = torch.empty_like(tensor, device="meta", requires_grad=False)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(other, requires_grad=tensor.requires_grad)
    return other


def _own_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that ``module`` itself holds, by local name."""
    items = (item for table in tables_of(module) for item in table.items())
    return {name: tensor for name, tensor in items if tensor is not None}
