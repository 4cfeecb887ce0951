"""Calls of attention and of rows by position, for ``rule_samples.py``."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.compiler.rules.rule_values import call, ints, mask, x

from partita.testing.prover import Sample

partita = torch.ops.partita


def attentions() -> Iterator[Sample]:
    for heads, queries, causal, given in (
        (4, 4, False, None),
        (2, 6, True, None),
        (2, 4, False, mask(1, 1, 4, 6) | torch.eye(4, 6).bool()),
        (4, 4, False, x(2, 4, 4, 6)),
        (2, 4, False, x(4, 6)),
        (4, 4, True, x(1, 6)),
    ):
        query, key, value = x(2, 4, queries, 2), x(2, heads, 6, 2), x(2, heads, 6, 2)
        args = (query, key, value, given, causal, 0.5)
        yield call("partita.attention", *args)
        out, lse = partita.attention(*args)
        inputs = (x(*out.shape), query, key, value, given, out, lse)
        yield call("partita.attention_backward", *inputs, causal, 0.5)


def rows_by_position() -> Iterator[Sample]:
    all_of_4, all_of_6 = torch.arange(4), torch.arange(6)
    some_of_6 = torch.tensor([1, 2, 5])
    ids = ints(-6, 6, 4, 2)
    yield call("partita.index", x(6, 8), [all_of_6], [0], [6], [ids])
    yield call("partita.index", x(3, 8), [some_of_6], [0], [6], [ints(0, 6, 8)])
    yield call("partita.index", x(4, 6), [all_of_6], [1], [6], [torch.tensor(3)])
    both = [all_of_4, all_of_6], [0, 1], [4, 6], [ints(0, 4, 8), ints(0, 6, 8)]
    yield call("partita.index", x(4, 6, 2), *both)
    apart = [all_of_4, all_of_6], [0, 2], [4, 6], [ints(0, 4, 8), ints(0, 6, 8)]
    yield call("partita.index", x(4, 2, 6), *apart)
    put = [all_of_6], [0], [6], [ids]
    yield call("partita.index_put", x(6, 8), *put, x(4, 2, 8), True)
    yield call("partita.index_put", x(6, 8), *put, x(8), True)
    once = [all_of_6], [1], [6], [torch.tensor([5, 1, 2, 0])]
    yield call("partita.index_put", x(4, 6), *once, x(4, 4), False)
    yield call("partita.index_put", x(3, 8), [some_of_6], *put[1:], x(4, 2, 8), True)
    yield call("partita.index_put", x(4, 6, 2), *both, x(8, 2), True)
    yield call("partita.gather", x(4, 6), all_of_6, 1, 6, ints(0, 6, 4, 8))
    yield call("partita.gather", x(4, 3), some_of_6, 1, 6, ints(0, 6, 4, 8))
    found = 1, 6, ints(0, 6, 4, 1), x(4, 1), False
    yield call("partita.scatter", x(4, 6), all_of_6, *found)
    yield call("partita.scatter", x(4, 3), some_of_6, *found)
    added_once = 1, 6, ints(0, 6, 4, 1), x(4, 1), True
    yield call("partita.scatter", x(4, 3), some_of_6, *added_once)
    order = torch.stack([torch.randperm(6) for _ in range(4)])
    several = 1, 6, order[:, :2].contiguous(), x(4, 2), False
    yield call("partita.scatter", x(4, 3), some_of_6, *several)
    added = 1, 6, ints(0, 6, 4, 8), x(4, 8), True
    yield call("partita.scatter", x(4, 6), all_of_6, *added)
    yield call("partita.scatter", x(4, 3), some_of_6, *added)


def parts() -> Iterator[Sample]:
    places = torch.arange(24).reshape(4, 6) % 2 == 0
    yield call("partita.masked_scatter_part", x(4, 6), places, x(12))


GROUPS = (attentions, rows_by_position, parts)
