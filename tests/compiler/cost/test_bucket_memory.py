"""What boxings hold that are carried out together."""

from __future__ import annotations

from dataclasses import replace

from partita.compiler.cost.boxing_memory import Link
from partita.compiler.cost.bucket_memory import (
    Chained,
    Exchanges,
    Moment,
    moments_of,
)
from partita.compiler.cost.step import StepKind


def link(name: str, num_bytes: int, workspace: int = 0, packed: bool = True) -> Chained:
    """Return a link on two ranks of dp; a collective's if it has the name of one."""
    kind = StepKind(name) if name in set(StepKind) - {StepKind.SLICE} else None
    return Chained(Link(name, num_bytes, workspace), "dp", 2, kind, packed)


def message(
    name: str, num_bytes: int, members: tuple[int, ...], workspace: int = 0
) -> Moment:
    return Moment(name, num_bytes, members, workspace, is_message=True)


def own(kind: StepKind, payload_bytes: int, axis: str) -> bool:
    """Say that the machine's own collectives carry everything out."""
    return False


def test_one_boxing_is_its_links() -> None:
    chain = [link("pad", 8), link("all_gather", 16, 16), link("unpack", 16)]
    assert list(moments_of([chain], own)) == [
        Moment("pad dp", 8, (0,)),
        message("all_gather dp", 16, (0,), 16),
        Moment("unpack dp", 16, (0,)),
    ]


def test_sums_lie_in_the_buffer_that_they_are_copied_to() -> None:
    rows = [[link("all_reduce", 8)], [link("all_reduce", 4, packed=False)]]
    assert list(moments_of(rows, own)) == [
        Moment("pack dp", 4, (1,)),
        message("all_reduce dp", 12, (0, 1)),
    ]


def test_what_is_gathered_is_copied_out_of_the_buffer() -> None:
    rows = [[link("all_gather", 8, 8), link("unpack", 8)], [link("all_gather", 4, 4)]]
    assert list(moments_of(rows, own)) == [
        Moment("bucket dp", 6, (0, 1)),
        message("all_gather dp", 12, (0, 1), 12),
        Moment("part dp", 8, (0,)),
        Moment("part dp", 4, (1,)),
        Moment("unpack dp", 8, (0,)),
    ]


def test_what_is_scattered_are_views_of_one_result() -> None:
    rows = [
        [link("reduce_scatter", 4, 8)],
        [link("pack", 12), link("reduce_scatter", 6, 12)],
    ]
    assert list(moments_of(rows, own)) == [
        Moment("pack dp", 12, (1,)),
        Moment("bucket dp", 20, (0, 1)),
        message("reduce_scatter dp", 10, (0, 1), 20),
    ]


def test_what_is_empty_here_waits_for_no_collective() -> None:
    rows = [[], [link("all_reduce", 4)], [link("all_reduce", 4)]]
    assert list(moments_of(rows, own)) == [message("all_reduce dp", 8, (1, 2))]


def summed(num_bytes: int, members: tuple[int, ...], size: int = 2) -> Moment:
    """Return what an exchange makes of ``num_bytes`` for each of ``size`` ranks."""
    workspace = (size - 1) * num_bytes
    return Moment("all_reduce dp", num_bytes, members, workspace, True, True)


def test_a_sum_by_an_exchange_is_put_in_for_each_rank() -> None:
    (plain,) = (link("all_reduce", 8),)
    chain = [replace(plain, size=3, is_exchanged=True)]
    assert list(moments_of([chain], own)) == [
        Moment("repeat dp", 24, (0,)),
        summed(8, (0,), 3),
    ]


def test_a_bucket_is_exchanged_by_what_all_of_it_has() -> None:
    small = [replace(link("all_reduce", n), is_exchanged=True) for n in (8, 4)]
    rows = [[one] for one in small]

    def at_most(most: int) -> Exchanges:
        return lambda kind, payload_bytes, axis: payload_bytes <= most

    assert list(moments_of(rows, at_most(11))) == [message("all_reduce dp", 12, (0, 1))]
    assert list(moments_of(rows, at_most(12))) == [
        Moment("bucket dp", 24, (0, 1)),
        summed(12, (0, 1)),
    ]
    gathers = [[link("all_gather", n, n)] for n in (8, 4)]
    assert list(moments_of(gathers, at_most(6)))[:2] == [
        Moment("bucket dp", 6, (0, 1)),
        message("all_gather dp", 12, (0, 1), 6),
    ]
