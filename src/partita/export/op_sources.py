"""The source of Partita's own ops, with all that it needs, for a file without Partita.

An op is a function under ``torch.library.custom_op``; its definition and the top-level
definitions that it uses, of its module and of others of Partita, are copied as they
stand in their files, in an order in which each comes behind those it uses.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType

_OWN = "partita"
_WRAPPER = "custom_op"
_REGISTERS = (_WRAPPER, "register_fake")
"""Decorators that make an op of a function, or say what an op returns."""


@dataclass
class OpSources:
    """What is copied for some ops.

    Attributes:
        imports: lines that import what is not Partita's.
        definitions: the text of each, by its name.
        calls: what stands for each op, by its name, like ``partita.random.default``.
    """

    imports: set[str] = field(default_factory=set[str])
    definitions: dict[str, str] = field(default_factory=dict[str, str])
    calls: dict[str, str] = field(default_factory=dict[str, str])
    _texts: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, ops: Iterable[str]) -> OpSources:
        """Collect the sources of ops by their names."""
        found, known = cls(), dict(_own_ops())
        for op in sorted(ops):
            module, name = known[op]
            found.calls[op] = name
            found.add(_Module.of(module), name)
        return found

    def add(self, module: _Module, name: str) -> None:
        """Add a name that is known at the top level of a module."""
        statement = module.names.get(name)
        match statement:
            case None:  # a builtin, or a name of the function's own
                return
            case ast.ImportFrom(module=str(path)) if path.partition(".")[0] == _OWN:
                (alias,) = (a for a in statement.names if (a.asname or a.name) == name)
                assert alias.asname is None, f"{path}: {alias.name} is renamed"
                self.add(_Module.of(path), name)
            case ast.Import() | ast.ImportFrom():
                self.imports.add(_import_line(statement, name))
            case _:
                self._define(module, name, statement)

    def _define(self, module: _Module, name: str, statement: ast.stmt) -> None:
        text = module.text_of(statement)
        if name in self._texts:
            assert self._texts[name] == text, f"{name} is two things"
            return
        self._texts[name] = text
        for used in _loaded(statement):
            if used != name:
                self.add(module, used)
        self.definitions[name] = text


@dataclass(frozen=True)
class _Module:
    """The source of a module, and the statement that each top-level name is made by."""

    path: str
    lines: tuple[str, ...]
    names: dict[str, ast.stmt]

    @staticmethod
    @cache
    def of(path: str) -> _Module:
        text = inspect.getsource(sys.modules[path])
        names: dict[str, ast.stmt] = {}
        for statement in ast.parse(text).body:
            names |= dict.fromkeys(_made(statement), statement)
        return _Module(path, tuple(text.splitlines()), names)

    def text_of(self, statement: ast.stmt) -> str:
        assert statement.end_lineno is not None
        own = self.lines[statement.lineno - 1 : statement.end_lineno]
        decorators = [
            f"@{ast.unparse(item)}"
            for item in getattr(statement, "decorator_list", ())
            if not _registers(item)
        ]
        return "\n".join((*decorators, *own))


def _made(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for node in (n for target in targets for n in ast.walk(target)):
                if isinstance(node, ast.Name):
                    yield node.id
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)
        case _:
            pass


def _import_line(statement: ast.Import | ast.ImportFrom, name: str) -> str:
    (alias,) = (a for a in statement.names if (a.asname or a.name) == name)
    if isinstance(statement, ast.Import):
        return ast.unparse(ast.Import([alias]))
    return ast.unparse(ast.ImportFrom(statement.module, [alias], 0))


def _loaded(statement: ast.stmt) -> list[str]:
    """Return the names that a statement reads, but not those that wrap it as an op."""
    wrapping = {
        id(node)
        for item in getattr(statement, "decorator_list", ())
        if _registers(item)
        for node in ast.walk(item)
    }
    names = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and id(node) not in wrapping
    ]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return [name for name in dict.fromkeys(n.id for n in names) if name not in own]


def _registers(decorator: ast.expr) -> bool:
    return any(word in ast.unparse(decorator) for word in _REGISTERS)


def _own_ops() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield every op with the module of its function and the function's name."""
    for path, module in sorted(sys.modules.items()):
        if path.startswith(f"{_OWN}.") and _is_source(module):
            for name, statement in _Module.of(path).names.items():
                yield from ((op, (path, by)) for op, by in _wrapped(name, statement))


def _is_source(module: ModuleType) -> bool:
    return str(getattr(module, "__file__", "")).endswith(".py")


def _wrapped(name: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
    match statement:
        case ast.FunctionDef(decorator_list=decorators):
            calls = [(item, name) for item in decorators if isinstance(item, ast.Call)]
        case ast.Assign(value=ast.Call(args=[_, ast.Name(id=function)]) as call):
            calls = [(call, function)]
        case _:
            return
    for call, function in calls:
        first = call.args[0] if call.args else None
        is_op = ast.unparse(call.func).endswith(_WRAPPER)
        if is_op and isinstance(first, ast.Constant):
            yield f"{str(first.value).replace('::', '.')}.default", function
