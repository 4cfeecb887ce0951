"""Find the user's model: ``file.py:function`` or ``package.module:function``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from partita.cli.named import failure, hint_of, load_module_of
from partita.compiler.errors import BadOptions


class Example(NamedTuple):
    """A model and the arguments of one call of it: one global batch."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def load_target(text: str) -> Example:
    """Return what the function that ``text`` names returns.

    Raises:
        BadOptions: when there is no such file, module or function, when it fails, and
            when it returns something else.
    """
    module, place, name = load_module_of("TARGET", text, "function")
    function = getattr(module, name, None)
    if not callable(function):
        hint = hint_of(module, name, Callable)
        problem = "has no function" if function is None else "holds no function, but"
        raise BadOptions(f"TARGET {text}: {place} {problem} {name}{hint}")
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise BadOptions(f"TARGET {text}: {name}() {failure(error)}") from error
    return _check_returned(text, name, returned)


def _check_returned(text: str, name: str, returned: Any) -> Example:
    def refuse(found: str) -> BadOptions:
        return BadOptions(
            f"TARGET {text}: {name}() returned {found}; want (model, args, kwargs), "
            "e.g. (model, (x,), {}) or (model, (), {'input_ids': ids})"
        )

    if not isinstance(returned, tuple) or len(cast("tuple[Any, ...]", returned)) != 3:
        raise refuse(_name_of(returned))
    model, args, kwargs = cast("tuple[Any, Any, Any]", returned)
    if not isinstance(model, torch.nn.Module):
        raise refuse(f"{_name_of(model)} as the model (an nn.Module)")
    if not isinstance(args, tuple | list):
        raise refuse(f"{_name_of(args)} as args (a tuple)")
    if not isinstance(kwargs, Mapping) or not all(
        isinstance(key, str) for key in cast("Mapping[Any, Any]", kwargs)
    ):
        raise refuse(f"{_name_of(kwargs)} as kwargs (a dict with names as keys)")
    return Example(model, tuple(cast("Sequence[Any]", args)), {**kwargs})


def _name_of(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', value))}"
    return "None" if value is None else f"a {type(value).__name__}"
