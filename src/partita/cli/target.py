"""Find the user's model: ``file.py:function`` or ``package.module:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch

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
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise BadOptions(
            f"TARGET {text!r}: want file.py:function or package.module:function"
        )
    module = _load_module(text, place)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value)]
        close = get_close_matches(name, known, n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        problem = "has no function" if function is None else "holds no function, but"
        raise BadOptions(f"TARGET {text}: {place} {problem} {name}{hint}")
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise BadOptions(f"TARGET {text}: {name}() {_failure(error)}") from error
    return _check_returned(text, name, returned)


def _load_module(text: str, place: str) -> ModuleType:
    """Import a file as python runs a script, a module as ``python -m`` does."""
    if not (place.endswith(".py") or "/" in place):
        _search_first(Path.cwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise BadOptions(f"TARGET {text}: {place} {_failure(error)}") from error
            raise BadOptions(
                f"TARGET {text}: there is no module {error.name!r}; for a file write "
                "file.py:function"
            ) from None
        except (Exception, SystemExit) as error:
            raise BadOptions(f"TARGET {text}: {place} {_failure(error)}") from error
    path = Path(place).resolve()
    name = f"target_of_partita_{path.stem}"  # so that a json.py shadows nothing
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise BadOptions(f"TARGET {text}: there is no Python file {place!r}")
    _search_first(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadOptions(f"TARGET {text}: {place} {_failure(error)}") from error
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _failure(error: BaseException) -> str:
    """Say what was raised and on which of the user's lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    own = [frame for frame in own if not frame.filename.startswith("<frozen")]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError):
        where = f" at {error.filename}:{error.lineno}"
    reason = " ".join(str(error).split())
    return f"raised {type(error).__name__}{where}: {reason}"


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
