"""When what was sent is known to have come: only where the other rank's row says so."""

from __future__ import annotations

import pytest

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.ir.transfer import Placed
from partita.compiler.plan.stage_records import Transfer, TransferKind
from partita.compiler.plan.wires import Wire
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.schedule import Action, Schedule, Work
from partita.compiler.schedules.transfers import with_transfers
from partita.runtime.released import released_at

WHOLE = Placement.parse("(B,)")


def wires(num_stages: int, skips: tuple[tuple[int, int], ...] = ()) -> list[Wire]:
    ways = [(s, s + 1) for s in range(num_stages - 1)] + list(skips)
    pairs = [(TransferKind.FORWARD, a, b) for a, b in ways]
    pairs += [(TransferKind.BACKWARD, b, a) for a, b in ways]
    return [
        Wire(
            Transfer(kind, f"{sender}>{receiver}", sender, receiver, WHOLE, WHOLE),
            TensorType.parse("f32[4]"),
            Placed(Mesh(dp=1), (sender,), WHOLE),
            Placed(Mesh(dp=1), (receiver,), WHOLE),
        )
        for kind, sender, receiver in pairs
    ]


def texts(schedule: Schedule, row: int, every: list[Wire]) -> dict[str, list[str]]:
    found = released_at(schedule, row, every)
    return {str(action): list(map(str, sent)) for action, sent in found.items()}


def test_a_gradient_that_comes_back_says_that_the_forward_came() -> None:
    schedule = with_transfers(make_schedule("1f1b", 2, 3))
    found = texts(schedule, 0, wires(2))
    assert found["0RECV_B0"] == ["0SEND_F0"]
    assert found["0RECV_B1"] == ["0SEND_F1"]
    assert found["0RECV_B2"] == ["0SEND_F2"]


def test_the_last_gradients_are_told_of_by_nothing() -> None:
    schedule = with_transfers(make_schedule("1f1b", 2, 3))
    told = [sent for group in texts(schedule, 1, wires(2)).values() for sent in group]
    assert "1SEND_B2" not in told
    assert "1SEND_B0" in told


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble", "frugal"])
def test_what_is_released_was_taken_before(name: str) -> None:
    """Run the rows: at a release, every receiver is past the action that took it."""
    schedule = with_transfers(make_schedule(name, 4, 6))
    every = wires(4, ((0, 2), (1, 3)))
    taken: set[Action] = set()
    sent: set[Action] = set()
    releases = [released_at(schedule, row, every) for row in range(4)]
    at = [0] * 4
    moved = True
    while moved:
        moved = False
        for row, actions in enumerate(schedule.rows):
            while at[row] < len(actions) and _may(actions[at[row]], sent, taken):
                action = actions[at[row]]
                (sent if "SEND" in action.work else taken).add(action)
                for release in releases[row].get(action, ()):
                    assert _takers(release, every) <= taken, (str(action), str(release))
                at[row] += 1
                moved = True
    assert at == [len(actions) for actions in schedule.rows]


def _may(action: Action, sent: set[Action], taken: set[Action]) -> bool:
    step = {Work.RECEIVE_FORWARD: -1, Work.RECEIVE_BACKWARD: 1}.get(action.work)
    if step is None:
        return True
    work = Work.SEND_FORWARD if step < 0 else Work.SEND_BACKWARD
    return Action(action.stage + step, work, action.microbatch) in sent


def _takers(release: Action, every: list[Wire]) -> set[Action]:
    is_forward = release.work is Work.SEND_FORWARD
    kind = TransferKind.FORWARD if is_forward else TransferKind.BACKWARD
    work = Work.RECEIVE_FORWARD if is_forward else Work.RECEIVE_BACKWARD
    return {
        Action(wire.transfer.receiver, work, release.microbatch)
        for wire in every
        if wire.kind is kind and wire.transfer.sender == release.stage
    }
