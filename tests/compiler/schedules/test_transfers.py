"""Sends stand behind what makes, receives before what uses, in one order on a way."""

from __future__ import annotations

from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.transfers import compute_alone, with_transfers


def rows(name: str, ranks: int, microbatches: int, virtual: int = 1) -> list[str]:
    made = with_transfers(make_schedule(name, ranks, microbatches, virtual))
    return [" ".join(map(str, row)) for row in made.rows]


def test_of_two_stages() -> None:
    assert rows("1f1b", 2, 2) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD 0UPDATE",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD 1UPDATE",
    ]


def test_gradients_of_weights_are_for_nobody_else() -> None:
    (first, second) = rows("zero-bubble", 2, 1)
    assert first == "0F0 0SEND_F0 0RECV_B0 0I0 0W0 0REDUCE_GRAD 0UPDATE"
    assert second == "1RECV_F0 1F0 1I0 1SEND_B0 1W0 1REDUCE_GRAD 1UPDATE"


def test_stages_of_one_rank_hand_on_by_memory() -> None:
    assert "SEND" not in rows("interleaved", 1, 2, 3)[0]


def test_they_can_be_taken_out_again() -> None:
    made = make_schedule("interleaved", 2, 4, 2)
    assert compute_alone(with_transfers(made)) == made
