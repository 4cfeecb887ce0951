"""What repeats in a sequence, and which nodes stand in the same place of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.compiler.search.edges import Edges
from partita.compiler.search.repeats import LEAST_COUNT, Run, alike, find_runs

_BLOCKS = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=5), st.integers(1, 5)), max_size=5
)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", []),
        ("abcabcabc", []),
        ("abcabcabcabc", [Run(0, 3, 4)]),
        ("xabababababy", [Run(1, 2, 5)]),
        ("xxaaaaay", [Run(2, 1, 5)]),
        ("abababab-cdecdecdecde", [Run(0, 2, 4), Run(9, 3, 4)]),
        ("aabaabaabaab", [Run(0, 3, 4)]),
    ],
)
def test_runs_of_a_text(text: str, runs: list[Run]) -> None:
    assert find_runs(np.array([ord(letter) for letter in text])) == runs


@given(_BLOCKS)
def test_no_run_covers_more_than_the_longest(blocks: list[tuple[str, int]]) -> None:
    text = "".join(block * count for block, count in blocks)
    most = max(
        (
            end - start - (end - start) % period
            for period in range(1, len(text) // LEAST_COUNT + 1)
            for start in range(len(text))
            for end in range(start + LEAST_COUNT * period, len(text) + 1)
            if text[start + period : end] == text[start : end - period]
        ),
        default=0,
    )
    runs = find_runs(np.array([ord(letter) for letter in text], dtype=np.int64))
    assert max((run.end - run.start for run in runs), default=0) == most


def test_weights_and_gradients_follow_the_place_of_their_block() -> None:
    # input 0, weights 1..4; call 5+i uses the call before it and weight 1+i; what
    # leaves is one gradient per call, and the last call as the loss
    labels = [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4]
    chain = [[(0 if not i else 4 + i, 0), (1 + i, 0)] for i in range(4)]
    leaving = [[(5 + i, 0)] for i in range(4)]
    operands = [[], [], [], [], [], *chain, *leaving, [(8, 0)]]
    classes = alike(labels, Edges.of(operands), range(5, 9))
    assert len(set(classes[1:5])) == 1
    assert len(set(classes[5:9])) == 1
    assert len(set(classes[9:13])) == 1
    assert len(set(classes)) == 5


def test_what_other_nodes_use_as_well_is_by_itself() -> None:
    # weight 1 is tied: a call behind the run uses it, too
    labels = [0, 1, 1, 1, 1, 2, 2, 2, 2, 9]
    calls = [[(0 if not i else 4 + i, 0), (1 + i, 0)] for i in range(4)]
    edges = Edges.of([[], [], [], [], [], *calls, [(8, 0), (1, 0)]])
    classes = alike(labels, edges, range(5, 10))
    assert classes[1] not in classes[2:5]
    assert len(set(classes[2:5])) == 1
