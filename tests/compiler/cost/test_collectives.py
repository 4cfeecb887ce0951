import pytest

from partita.compiler.cost.collectives import CollectiveKind, seconds, wire_bytes
from partita.compiler.hardware.profile import CollectiveCost

GATHER, REDUCE, SCATTER, EXCHANGE = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


@pytest.mark.parametrize(
    ("kind", "payload", "size", "expected"),
    [
        (GATHER, 100, 4, 300),
        (REDUCE, 100, 4, 150),
        (SCATTER, 100, 4, 75),
        (EXCHANGE, 100, 4, 75),
        (REDUCE, 4, 3, 6),  # 16 / 3, rounded up
        (GATHER, 100, 1, 0),
        (REDUCE, 100, 1, 0),
    ],
)
def test_wire_bytes_are_those_of_a_ring(
    kind: CollectiveKind, payload: int, size: int, expected: int
) -> None:
    assert wire_bytes(kind, payload, size) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (GATHER, 3 * 0.5 + 3 * 800 / 100),
        (REDUCE, 6 * 0.5 + 2 * 3 / 4 * 800 / 100),
        (SCATTER, 3 * 0.5 + 3 / 4 * 800 / 100),
        (EXCHANGE, 3 * 0.5 + 3 / 4 * 800 / 100),
    ],
)
def test_seconds_are_steps_and_bytes(kind: CollectiveKind, expected: float) -> None:
    cost = CollectiveCost(alpha_s=0.5, bytes_per_s=100)
    wire = wire_bytes(kind, 800, 4)
    assert seconds(kind, wire, 4, cost) == pytest.approx(expected)
