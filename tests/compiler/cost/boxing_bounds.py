"""What any way of boxing must move: a bound that knows no steps and no collectives.

It counts words, one per element. A word that travels carries something about one
element, and a reduction is opaque: what a rank is to know of it must reach it. Links
are full duplex, so the time is that of the rank that sends or receives most.

Of one element, the *sources* are the sets of ranks that hold the same of it: one set,
or one per summand where the source is partial. A *target* is a place along the axes
that hold copies: there, one *crew* of ranks must together know the element. Crews are
single ranks; along partial axes whose reduction the source has (or any, where the
source has none) the ranks of a crew may each know a part. Then

* for each set of ranks, what a source inside alone holds and a target outside needs,
  must leave it, and enter the others: so many words over the number of ranks on either
  side (the cut-set bound; Cover and Thomas, "Elements of Information Theory", 2nd
  edition, section 15.10). Of single ranks: what a rank misses, it receives.
* a target none of whose crews has all sources receives; a source that a target lacks
  sends, and so do as many sources as the crew lacks that lacks fewest.
* where k sources meet in a rank, and t ranks are to know: the first to know takes
  k - 1 messages, each of the others one more, k + t - 2 in all. Shared among n = k = t
  ranks these are the 2 (n - 1) / n of Patarasuk and Yuan, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69(2), 2009;
  the count is that of one-way gossip (Harary and Schwenk, "The communication problem on
  graphs and digraphs", J. Franklin Inst. 297(6), 1974).

No bound asks how reductions nest, so it is low where a sum of maxima is asked for.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import compress, product

from tests.compiler.cost.boxing_pairs import held

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import (
    Broadcast,
    Partial,
    Placement,
    Reduction,
    Sharding,
)

Ranks = int
"""A set of ranks: bit r stands for rank r."""

_Index = tuple[int, ...]

Target = tuple[Ranks, ...]
"""Its crews."""


def least_words(
    shape: tuple[int, ...], source: Placement, target: Placement, mesh: Mesh
) -> Fraction:
    """Return the words that the busiest rank must send or receive at least."""
    reductions = frozenset(_reduction(s) for s in source.shardings) - {None}
    sources_of = _sources(shape, source, mesh)
    targets_of = _targets(shape, target, mesh, reductions)
    elements = product(*(range(size) for size in shape))
    kinds = Counter((sources_of[i], targets_of[i]) for i in elements)
    found = Fraction(0)
    for side in range(1, (1 << mesh.size) - 1):
        leaving = sum(
            count
            for (sources, targets), count in kinds.items()
            if any(held & side == held for held in sources)
            and any(not any(crew & side for crew in crews) for crews in targets)
        )
        fewer = min(side.bit_count(), mesh.size - side.bit_count())
        found = max(found, Fraction(leaving, fewer))
    total = sum(count * _messages(*kind) for kind, count in kinds.items())
    return max(found, Fraction(total, mesh.size))


def _messages(sources: tuple[Ranks, ...], targets: tuple[Target, ...]) -> int:
    """Return how many messages about one element there must be."""
    lacking = [
        [{held for held in sources if not held & crew} for crew in crews]
        for crews in targets
    ]
    receivers = sum(all(crews) for crews in lacking)
    senders = len(set[Ranks]().union(*(set.intersection(*crews) for crews in lacking)))
    fewest = max(min(map(len, crews)) for crews in lacking)
    least = max(receivers, senders, fewest)
    is_alone = all(crew.bit_count() == 1 for crews in targets for crew in crews)
    if len(sources) > 1 and is_alone:
        return max(least, len(sources) + len(targets) - 2)
    return least


@lru_cache(maxsize=1 << 12)
def _sources(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh
) -> dict[_Index, tuple[Ranks, ...]]:
    """Return, per element, the ranks that hold it: a set per place on partial axes."""
    found: dict[_Index, dict[_Index, Ranks]] = {}
    partial = [isinstance(sharding, Partial) for sharding in placement.shardings]
    for rank, coords in enumerate(mesh.all_coordinates()):
        key = tuple(compress(coords, partial))
        for index in product(*held(shape, placement, mesh, coords)):
            sets = found.setdefault(index, {})
            sets[key] = sets.get(key, 0) | 1 << rank
    return {index: tuple(sorted(sets.values())) for index, sets in found.items()}


@lru_cache(maxsize=1 << 12)
def _targets(
    shape: tuple[int, ...],
    placement: Placement,
    mesh: Mesh,
    reductions: frozenset[Reduction | None],
) -> dict[_Index, tuple[Target, ...]]:
    """Return, per element, its targets; ``reductions`` are those of the source."""
    found: dict[_Index, dict[_Index, dict[_Index, Ranks]]] = {}
    copied = [isinstance(sharding, Broadcast) for sharding in placement.shardings]
    alone = [
        bool(reductions) and _reduction(sharding) not in {None, *reductions}
        for sharding in placement.shardings
    ]
    for rank, coords in enumerate(mesh.all_coordinates()):
        place, crew = tuple(compress(coords, copied)), tuple(compress(coords, alone))
        for index in product(*held(shape, placement, mesh, coords)):
            crews = found.setdefault(index, {}).setdefault(place, {})
            crews[crew] = crews.get(crew, 0) | 1 << rank
    return {
        index: tuple(sorted(tuple(sorted(crews.values())) for crews in places.values()))
        for index, places in found.items()
    }


def _reduction(sharding: Sharding) -> Reduction | None:
    return sharding.reduction if isinstance(sharding, Partial) else None
