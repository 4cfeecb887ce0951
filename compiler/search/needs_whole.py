"""What to say of a model that needs the whole batch at once."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from partita.compiler.errors import BadOptions
from partita.compiler.ir.program import (
    OutputKind,
    OutputRole,
    Program,
    Value,
    info,
    operands,
)
from partita.compiler.ir.sbp import Broadcast, Partial, Sharding

_WHOLE, _SUM = Broadcast(), Partial()


def needs_whole(
    program: Program, node: fx.Node, made: Mapping[Value, Sharding], count: int
) -> str:
    """Return why ``node`` cannot be computed of one of ``count`` microbatches."""
    other = [value for value in operands(node) if made[value] != _WHOLE]
    parts = next((value for value in other if made[value] == _SUM), other[0])
    fact = info(node)
    where = f" ({fact.source})" if fact.source else ""
    how = "adds up" if made[parts] == _SUM else "is made in parts"
    other_way = "whose loss is a sum or a mean over the batch"
    if returned := _returned_alone(program, node):
        other_way = f"that does not return {returned!r}, for which alone it is made"
    return (
        f"microbatches is {count}, but {fact.key!r}{where} needs the whole "
        f"batch: {info(parts.node).key!r}, which it uses, {how} over the "
        f"microbatches; want 1, or a model {other_way}"
    )


def _returned_alone(program: Program, node: fx.Node) -> str:
    """Return the output that ``node`` is made for; "" if it is for more than those."""
    users, open_nodes = set[fx.Node](), [node]
    while open_nodes:
        made = open_nodes.pop()
        if made not in users:
            users.add(made)
            open_nodes += made.users
    roles = [role for leaf, role in program.results() if leaf in users]
    if any(role.kind is not OutputKind.OUTPUT for role in roles):
        return ""
    return roles[0].name


def check_output(value: Value, role: OutputRole, found: Sharding, count: int) -> None:
    """Check that what leaves is what ``count`` microbatches can make of it.

    Raises:
        BadOptions: for gradients and losses that are no sum, and for buffers that the
            microbatches would write differently.
    """
    if role.kind in (OutputKind.LOSS, OutputKind.GRADIENT):
        if found in (_SUM, _WHOLE):
            return
        wanted = "does not add up over the microbatches"
    elif role.kind is OutputKind.MUTATED_BUFFER and found != _WHOLE:
        wanted = "is not the same for all of them"
    else:
        return
    fact = info(value.node)
    where = f" ({fact.source})" if fact.source else ""
    raise BadOptions(
        f"microbatches is {count}, but {role.kind} {role.name!r} {wanted}: "
        f"{fact.key!r}{where} makes it as {found} on their axis; want 1"
    )
