"""What ranks run: an importable function, or the text that names one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from partita.compiler.errors import BadOptions

Target = Callable[..., Any] | str
"""A function, ``file.py:function`` or ``package.module:function``."""


def find_target(target: Target) -> Callable[..., Any]:
    """Return the function that a target names.

    Raises:
        BadOptions: when there is no such file, module or function.
    """
    if not isinstance(target, str):
        return target
    source, _, name = target.rpartition(":")
    if not source:
        raise BadOptions(
            f"target {target!r}: want file.py:function or package.module:function"
        )
    module = _load_file(source) if source.endswith(".py") else _load_module(source)
    found = getattr(module, name, None)
    if not callable(found):
        raise BadOptions(f"target {target!r}: {source} has no function {name!r}")
    return found


def as_importable(target: Target) -> Target:
    """Return a target that another process finds, too.

    What the main script defines is named by its file; the script is not run again.
    """
    if not isinstance(target, str) and target.__module__ == "__main__":
        path = getattr(sys.modules["__main__"], "__file__", None)
        if path is None:
            raise BadOptions(
                f"target {target.__qualname__!r} was typed in, so that other processes "
                "cannot import it; put it into a file"
            )
        return f"{Path(path).resolve()}:{target.__qualname__}"
    return target


def _load_file(source: str) -> ModuleType:
    path = Path(source).resolve()
    if not path.is_file():
        raise BadOptions(f"target: there is no file {source}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as for a script: its neighbours import
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise BadOptions(f"target: there is no module {name}") from None
