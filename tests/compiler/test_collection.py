"""The collector of cyclic garbage rests for a while, and is then as it was."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

from partita.compiler import collection
from partita.compiler.collection import collection_paused


@pytest.mark.parametrize("is_at_work", [True, False])
def test_the_collector_is_as_it_was(is_at_work: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if is_at_work else gc.disable)()
        with collection_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == is_at_work
    finally:
        (gc.enable if was else gc.disable)()


class Cyclic:
    """Kept alive by itself alone, once nothing else refers to it."""

    def __init__(self) -> None:
        self.own = self


def test_what_is_made_meanwhile_is_old_and_seen_once_it_is_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    with collection_paused():
        lost = ref(Cyclic())
    assert gc.get_count()[0] < 1_000, "of which nothing is young"
    gc.collect(1)
    assert lost() is not None
    monkeypatch.setattr(collection, "_MOST_UNSEEN", 10_000)
    monkeypatch.setattr(collection, "_MOST_PART", 0.0)
    with collection_paused():
        kept = [Cyclic() for _ in range(12_000)]
    assert lost() is not None
    with collection_paused():
        assert lost() is None
    assert len(kept) == 12_000


def test_the_more_there_is_the_more_grows_old_before_all_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collection, "_MOST_UNSEEN", 0)
    monkeypatch.setattr(collection, "_MOST_PART", 0.0)
    with collection_paused():
        kept = [Cyclic()]  # something to look at, for the next that begins
    with collection_paused():
        lost = ref(Cyclic())
    monkeypatch.setattr(collection, "_MOST_PART", 1.0)
    with collection_paused():
        assert lost() is not None, "of all that there is it was the least part"
    monkeypatch.setattr(collection, "_MOST_PART", 0.0)
    with collection_paused():
        assert lost() is None
    assert kept


def test_what_is_frozen_stays_so() -> None:
    held = Cyclic()
    gc.freeze()
    try:
        assert _is_frozen(held)
        with collection_paused():
            pass
        assert _is_frozen(held)
    finally:
        gc.unfreeze()
    assert not _is_frozen(held)


def _is_frozen(held: object) -> bool:
    """Whether the collector has been told to leave an object out."""
    return all(seen is not held for seen in gc.get_objects())
