"""What boxings hold that are carried out together."""

from __future__ import annotations

from partita.compiler.cost.boxing_memory import Link
from partita.compiler.cost.bucket_memory import Chained, Moment, moments_of
from partita.compiler.cost.step import StepKind


def link(name: str, num_bytes: int, workspace: int = 0, packed: bool = True) -> Chained:
    """Return a link on two ranks of dp; a collective's if it has the name of one."""
    kind = StepKind(name) if name in set(StepKind) - {StepKind.SLICE} else None
    return Chained(Link(name, num_bytes, workspace), "dp", 2, kind, packed)


def message(
    name: str, num_bytes: int, members: tuple[int, ...], workspace: int = 0
) -> Moment:
    return Moment(name, num_bytes, members, workspace, is_message=True)


def test_one_boxing_is_its_links() -> None:
    chain = [link("pad", 8), link("all_gather", 16, 16), link("unpack", 16)]
    assert list(moments_of([chain])) == [
        Moment("pad dp", 8, (0,)),
        message("all_gather dp", 16, (0,), 16),
        Moment("unpack dp", 16, (0,)),
    ]


def test_sums_lie_in_the_buffer_that_they_are_copied_to() -> None:
    rows = [[link("all_reduce", 8)], [link("all_reduce", 4, packed=False)]]
    assert list(moments_of(rows)) == [
        Moment("pack dp", 4, (1,)),
        message("all_reduce dp", 12, (0, 1)),
    ]


def test_what_is_gathered_is_copied_out_of_the_buffer() -> None:
    rows = [[link("all_gather", 8, 8), link("unpack", 8)], [link("all_gather", 4, 4)]]
    assert list(moments_of(rows)) == [
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
    assert list(moments_of(rows)) == [
        Moment("pack dp", 12, (1,)),
        Moment("bucket dp", 20, (0, 1)),
        message("reduce_scatter dp", 10, (0, 1), 20),
    ]


def test_what_is_empty_here_waits_for_no_collective() -> None:
    rows = [[], [link("all_reduce", 4)], [link("all_reduce", 4)]]
    assert list(moments_of(rows)) == [message("all_reduce dp", 8, (1, 2))]
