"""What an exported Python program says of a pipeline: who does what, who sends what."""

from __future__ import annotations

from collections.abc import Iterator

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.ir.transfer import Message, Region, transfer
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.plan.stages import read_schedule
from partita.compiler.plan.units import printable
from partita.compiler.plan.uses import type_of
from partita.compiler.plan.wires import Wire, wires_of
from partita.runtime.released import released_at


def wire_tables(plan: Plan) -> Iterator[str]:
    """Yield the lines of ``ROWS``, ``ARRIVED``, ``LOSS`` and ``WIRES``."""
    schedule, wires = read_schedule(plan), wires_of(plan)
    yield f"# The schedule is {printable(schedule.name)}."
    yield "ROWS = ["
    yield from (f'    "{" ".join(map(str, row))}",' for row in schedule.rows)
    yield "]"
    yield ""
    yield "# By row and action, what was sent and is known to have come behind it."
    yield "ARRIVED = ["
    for row in range(len(schedule.rows)):
        yield "    {"
        for action, sent in released_at(schedule, row, wires).items():
            yield f'        "{action}": {[str(one) for one in sent]},'
        yield "    },"
    yield "]"
    yield ""
    yield "# The rank that tells the others the loss, and its dtype."
    yield f"LOSS = {_loss(plan)}"
    yield ""
    yield "WIRES = ["
    for number, wire in enumerate(wires):
        yield from (f"    {line}" for line in _wire(plan, number, wire))
    yield "]"


def _loss(plan: Plan) -> str:
    loss = next((o for o in plan.outputs if o.kind is OutputKind.LOSS), None)
    if loss is None or loss.value is None:
        return "None"
    ranks = plan.stages[plan.nodes[loss.value.key].stage].ranks
    return f"({ranks[0]}, {type_of(plan, loss.value).dtype})"


def _wire(plan: Plan, number: int, wire: Wire) -> Iterator[str]:
    own, type_ = wire.transfer, wire.type
    leaves, enters = _keys(plan, wire)
    change = f"{own.source} -> {own.target}"
    yield f"# {printable(f'{own.kind}: {own.name}, {type_}, {change}')}"
    yield "{"
    yield f'    "number": {number},'
    yield f'    "kind": "{own.kind}",'
    yield f'    "sender": {own.sender},'
    yield f'    "receiver": {own.receiver},'
    yield f'    "leaves": {leaves!a},'
    yield f'    "enters": {enters!a},'
    yield f'    "dtype": {type_.dtype},'
    yield '    "shapes": {'
    for rank in wire.target.ranks:
        here = wire.target.coordinates(rank)
        shape = shard_shape(type_.shape, own.target, wire.target.mesh, here)
        yield f"        {rank}: {shape},"
    yield "    },"
    yield '    "messages": ['
    for message in transfer(type_.shape, wire.source, wire.target):
        yield f"        {_message(message)},"
    yield "    ],"
    yield "},"


def _keys(plan: Plan, wire: Wire) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return what leaves the one stage, and as what it enters the other."""
    name, kind = wire.transfer.name, wire.kind
    if kind is TransferKind.STATE:
        is_parameter = name in plan.parameters
        held = InputKind.PARAMETER if is_parameter else InputKind.BUFFER
        return (str(held), name), (str(wire.enters[0]), name)
    leaves = str(wire.leaves.kind), wire.leaves.name
    if kind is TransferKind.GRADIENT:
        return leaves, (str(wire.joins.kind), wire.joins.name)
    return leaves, (str(wire.enters[0]), wire.enters[1])


def _message(message: Message) -> str:
    pairs = zip(message.taken, message.put, strict=True)
    regions = [(_ends(taken), _ends(put)) for taken, put in pairs]
    return f"({message.sender}, {message.receiver}, {regions})"


def _ends(region: Region) -> tuple[tuple[int, int], ...]:
    return tuple((part.start, part.stop) for part in region)
