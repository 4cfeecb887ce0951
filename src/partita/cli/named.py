"""Find what the user wrote in Python: ``file.py:name`` or ``package.module:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from partita.compiler.errors import BadOptions


def load_module_of(what: str, text: str, noun: str) -> tuple[ModuleType, str, str]:
    """Return the module that ``text`` names, where it is, and the name in it.

    ``what`` begins what is said of it (``TARGET``), ``noun`` is what is wanted there.

    Raises:
        BadOptions: for another form, and a file or module that is not there or fails.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise BadOptions(
            f"{what} {text!r}: want file.py:{noun} or package.module:{noun}"
        )
    return _load(f"{what} {text}", place, noun), place, name


def hint_of(module: ModuleType, name: str, kind: Any) -> str:
    """Return what of a kind in a module is called almost so, as the end of a line."""
    known = [key for key, value in vars(module).items() if isinstance(value, kind)]
    close = get_close_matches(name, known, n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def failure(error: BaseException) -> str:
    """Say what was raised and on which of the user's lines."""
    frames = traceback.extract_tb(error.__traceback__)
    folder = str(Path(__file__).parent)
    own = [frame for frame in frames if not frame.filename.startswith(folder)]
    own = [frame for frame in own if not frame.filename.startswith("<frozen")]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError):
        where = f" at {error.filename}:{error.lineno}"
    reason = " ".join(str(error).split())
    return f"raised {type(error).__name__}{where}: {reason}"


def _load(said: str, place: str, noun: str) -> ModuleType:
    """Import a file as python runs a script, a module as ``python -m`` does."""
    if not (place.endswith(".py") or "/" in place):
        _search_first(Path.cwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise BadOptions(f"{said}: {place} {failure(error)}") from error
            raise BadOptions(
                f"{said}: there is no module {error.name!r}; for a file write "
                f"file.py:{noun}"
            ) from None
        except (Exception, SystemExit) as error:
            raise BadOptions(f"{said}: {place} {failure(error)}") from error
    path = Path(place).resolve()
    name = f"target_of_partita_{path.stem}"  # so that a json.py shadows nothing
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise BadOptions(f"{said}: there is no Python file {place!r}")
    _search_first(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadOptions(f"{said}: {place} {failure(error)}") from error
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
