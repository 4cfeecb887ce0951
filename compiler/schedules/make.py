"""The schedules that are known by name.

GPipe: Huang et al., NeurIPS 2019. 1F1B: Narayanan et al., "PipeDream", SOSP 2019, with
the flush of Fan et al., "DAPPLE", PPoPP 2021. Interleaved stages: Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC
2021, section 2.2. ZB-H1: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024,
section 2.1; their orders are hand-made, these follow from rules that give its figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita.compiler.errors import BadOptions
from partita.compiler.schedules.limited import limited_rows
from partita.compiler.schedules.schedule import Action, Schedule, Work

F, B, I, W = Work.FORWARD, Work.BACKWARD, Work.BACKWARD_INPUT, Work.BACKWARD_WEIGHT  # noqa: E741


def make_schedule(
    name: str, num_ranks: int, num_microbatches: int, stages_per_rank: int = 1
) -> Schedule:
    """Return the schedule of a pipeline.

    Args:
        name: one of ``SCHEDULES``.
        num_ranks: of the pipeline.
        num_microbatches: into which a batch is cut.
        stages_per_rank: virtual stages; more than one for ``interleaved`` alone.

    Raises:
        BadOptions: for an unknown name, or figures that it cannot do.

    >>> print(make_schedule("1f1b", 2, 3))
    rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    check_figures(name, num_ranks, num_microbatches, stages_per_rank)
    if name == "interleaved":
        return interleaved(num_ranks, num_microbatches, stages_per_rank)
    return SCHEDULES[name](num_ranks, num_microbatches)


def check_figures(
    name: str, num_ranks: int, num_microbatches: int, stages_per_rank: int
) -> None:
    """Check that a schedule can do such figures.

    Raises:
        BadOptions: for an unknown name, or figures that it cannot do.
    """
    if name not in SCHEDULES:
        known = ", ".join(sorted(SCHEDULES))
        raise BadOptions(f"schedule {name!r} is not one of {known}")
    if min(num_ranks, num_microbatches, stages_per_rank) < 1:
        raise BadOptions(
            f"schedule {name!r}: {num_ranks} ranks, {num_microbatches} microbatches, "
            f"{stages_per_rank} stages on a rank; want at least 1 of each"
        )
    if name != "interleaved" and stages_per_rank > 1:
        raise BadOptions(
            f"schedule {name!r} has one stage on a rank, not {stages_per_rank}; "
            "interleaved has several"
        )
    if name == "interleaved" and num_microbatches % num_ranks and num_ranks > 1:
        raise BadOptions(
            f"schedule {name!r}: {num_microbatches} microbatches are no multiple of "
            f"{num_ranks} ranks"
        )


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return all forwards, then all backwards."""
    every = range(num_microbatches)
    rows = tuple(
        (*(Action(s, F, i) for i in every), *(Action(s, B, i) for i in every))
        for s in range(num_ranks)
    )
    live = (num_microbatches,) * num_ranks
    return Schedule("gpipe", num_microbatches, tuple(range(num_ranks)), rows, live)


def one_forward_one_backward(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return 1F1B: a stage holds no more microbatches than stages follow, and one."""
    rows: list[tuple[Action, ...]] = []
    for stage in range(num_ranks):
        ahead = min(num_ranks - stage - 1, num_microbatches)
        forward = [Action(stage, F, i) for i in range(num_microbatches)]
        backward = [Action(stage, B, i) for i in range(num_microbatches)]
        rows.append(_alternate(forward, backward, ahead))
    live = tuple(min(num_ranks - s, num_microbatches) for s in range(num_ranks))
    stages = tuple(range(num_ranks))
    return Schedule("1f1b", num_microbatches, stages, tuple(rows), live)


def interleaved(
    num_ranks: int, num_microbatches: int, stages_per_rank: int
) -> Schedule:
    """Return 1F1B of stages that go round the ranks several times.

    The microbatches are a multiple of the ranks.
    """
    total = num_microbatches * stages_per_rank
    rows: list[tuple[Action, ...]] = []
    for rank in range(num_ranks):
        ahead = 2 * (num_ranks - rank - 1) + (stages_per_rank - 1) * num_ranks
        ahead = total if num_microbatches == num_ranks else min(ahead, total)
        forward, backward = (
            [
                _interleaved(number, rank, num_ranks, stages_per_rank, work)
                for number in range(total)
            ]
            for work in (F, B)
        )
        rows.append(_alternate(forward, backward, ahead))
    rank_of = tuple(range(num_ranks)) * stages_per_rank
    made = Schedule("interleaved", num_microbatches, rank_of, tuple(rows), ())
    return Schedule("interleaved", num_microbatches, rank_of, made.rows, made.live())


def _interleaved(
    number: int, rank: int, num_ranks: int, stages_per_rank: int, work: Work
) -> Action:
    """Return the action of a number: so many of a stage, then of a rank's next one."""
    turn, place = divmod(number, num_ranks)
    round_, chunk = divmod(turn, stages_per_rank)
    if work is B:
        chunk = stages_per_rank - 1 - chunk
    return Action(chunk * num_ranks + rank, work, round_ * num_ranks + place)


def _alternate(
    forward: Sequence[Action], backward: Sequence[Action], ahead: int
) -> tuple[Action, ...]:
    """Return some forwards, then one of each in turn, then the backwards left."""
    row = list(forward[:ahead])
    for number, action in enumerate(backward):
        if ahead + number < len(forward):
            row.append(forward[ahead + number])
        row.append(action)
    return tuple(row)


def zero_bubble(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return ZB-H1: gradients of weights fill what 1F1B idles, in as much memory.

    A stage puts them off by as many microbatches as stages come before it, so that all
    hold as many as the first one of 1F1B does.
    """
    every = range(num_microbatches)
    rows: list[tuple[Action, ...]] = []
    for stage in range(num_ranks):
        ahead = min(num_ranks - stage, num_microbatches)
        row = [Action(stage, F, i) for i in range(ahead)]
        for i in every:
            row.append(Action(stage, I, i))
            if i >= stage:
                row.append(Action(stage, W, i - stage))
            if ahead + i < num_microbatches:
                row.append(Action(stage, F, ahead + i))
        left = range(max(num_microbatches - stage, 0), num_microbatches)
        rows.append((*row, *(Action(stage, W, i) for i in left)))
    live = (min(num_ranks, num_microbatches),) * num_ranks
    stages = tuple(range(num_ranks))
    return Schedule("zero-bubble", num_microbatches, stages, tuple(rows), live)


def frugal(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return a 1F1B that holds half as many microbatches, and waits for it."""
    live = tuple((num_ranks - stage + 1) // 2 for stage in range(num_ranks))
    rows = limited_rows(live, num_microbatches)
    claim = tuple(min(most, num_microbatches) for most in live)
    return Schedule("frugal", num_microbatches, tuple(range(num_ranks)), rows, claim)


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "1f1b": one_forward_one_backward,
    "frugal": frugal,
    "gpipe": gpipe,
    "interleaved": lambda ranks, microbatches: interleaved(ranks, microbatches, 1),
    "zero-bubble": zero_bubble,
}
"""What makes a schedule of ranks and microbatches, by name."""
