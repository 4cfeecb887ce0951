"""The collector of cyclic garbage rests for a while, and is then as it was."""

from __future__ import annotations

import gc

import pytest

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
