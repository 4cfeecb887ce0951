"""What an op's schema says of it: what it takes, writes to and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.compiler.capture.torch_private import schema_of


def writes_in_place(target: object) -> bool:
    """Whether ``target`` is an op whose schema says that it writes to an argument."""
    schema = schema_of(target)
    return schema is not None and schema.is_mutable


def written_arguments(
    target: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object]:
    """Return what a call of an op writes to: tensors, and lists of them."""
    schema = schema_of(target)
    if schema is None:
        return []
    given = dict(zip(argument_names(target), args, strict=False)) | dict(kwargs)
    is_written = {a.name: a.is_write for a in schema.arguments}
    return [value for name, value in given.items() if is_written[name]]


def argument_names(target: object) -> tuple[str, ...]:
    """Return the names of an op's arguments, in order."""
    schema = schema_of(target)
    return () if schema is None else tuple(a.name for a in schema.arguments)


def makes_tensors(target: object) -> bool:
    """Whether ``target`` is an op that makes tensors, on a device, out of none."""
    schema = schema_of(target)
    if schema is None:
        return False
    takes = {argument.name: str(argument.type) for argument in schema.arguments}
    return "device" in takes and not any("Tensor" in kind for kind in takes.values())


def tensor_slots(target: object) -> tuple[str, ...]:
    """Return per positional argument whether it takes "one" tensor, "many" or ""."""
    schema = schema_of(target)
    arguments = () if schema is None else schema.arguments
    kinds = [str(a.type) for a in arguments if not a.kwarg_only]
    many = ("List[Tensor]", "List[Optional[Tensor]]")
    return tuple(
        "many" if kind in many else "one" if "Tensor" in kind else "" for kind in kinds
    )


def may_share_memory(target: object) -> bool:
    """Whether an op's schema says that its result may be its operand's memory."""
    schema = schema_of(target)
    returns = () if schema is None else schema.returns
    return any(result.alias_info is not None for result in returns)
