"""Numbers by seed, draw and element: known answers, and the same under any layout."""

from itertools import product

import pytest
import torch

from partita.compiler.capture.random_numbers import (
    AT_ONCE,
    draw,
    philox,
    pieces,
    random,
    seed_value,
    stream_of,
)

SEED = torch.tensor(seed_value(7, 3))


# Random123's known answers for philox4x32-10 (its file kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], wanted: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)
    k0, k1 = (torch.tensor(word) for word in key)
    found = philox((c0, c1, c2, c3), (k0, k1))
    assert tuple(int(word) for word in found) == wanted


@pytest.mark.parametrize("kind", ["uniform", "normal", "bits"])
def test_a_shard_draws_its_own_elements(kind: str) -> None:
    whole = draw(SEED, (5, 6), stream_of("a"), kind)
    rows, columns = torch.tensor([1, 4]), torch.tensor([0, 3, 5])
    part = random(SEED, [rows, columns], [5, 6], stream_of("a"), kind)
    assert torch.equal(part, whole[rows][:, columns])


def one_by_one(shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Return a draw whose elements are each drawn by itself."""
    found = torch.empty(shape, dtype=torch.int64 if kind == "bits" else torch.float32)
    for at in product(*map(range, shape)):
        alone = [torch.tensor([index]) for index in at]
        found[at] = random(SEED, alone, list(shape), stream_of("a"), kind)
    return found


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 12), (5, 7), (1, 4)])
@pytest.mark.parametrize("kind", ["uniform", "normal", "bits"])
def test_what_is_drawn_at_once_does_not_matter(
    kind: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = one_by_one(shape, kind)
    for most in (1, 4, 10, 1000):
        monkeypatch.setitem(AT_ONCE, "cpu", 4 * most)
        assert torch.equal(draw(SEED, shape, stream_of("a"), kind), wanted)


@pytest.mark.parametrize("columns", [(4, 5, 6, 7), (0, 1, 2, 3, 8, 9, 10, 11)])
@pytest.mark.parametrize("start", [0, 1])
def test_neighbours_that_share_words_are_drawn_as_they_are_alone(
    start: int, columns: tuple[int, ...]
) -> None:
    index = torch.tensor(columns) + start
    whole = one_by_one((2, 16), "bits")
    part = random(SEED, [torch.arange(2), index], [2, 16], stream_of("a"), "bits")
    assert torch.equal(part, whole[:, index])


@pytest.mark.parametrize("shape", [(), (5,), (7, 3), (2, 3, 40), (0, 4)])
def test_pieces_are_the_whole(shape: tuple[int, ...]) -> None:
    for most in (1, 8, 24, 1000):
        seen = torch.zeros(shape, dtype=torch.int64)
        sizes: list[int] = []
        for piece in pieces(shape, most):
            seen[piece] += 1
            sizes.append(seen[piece].numel())
        assert (seen == 1).all()
        assert max(sizes, default=0) == (sizes[0] if sizes else 0)
        assert max(sizes, default=0) <= most + 4


def test_draws_steps_and_seeds_differ() -> None:
    drawn = [
        draw(torch.tensor(seed_value(seed, step)), (64,), stream_of(key), "bits")
        for seed, step, key in [(0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (1, 0, "a")]
    ]
    for i, one in enumerate(drawn):
        for other in drawn[i + 1 :]:
            assert not (one == other).any()


def test_numbers_are_distributed_as_they_should() -> None:
    uniform = draw(SEED, (200, 500), stream_of("u"), "uniform").double()
    assert 0.0 <= float(uniform.min())
    assert float(uniform.max()) < 1.0
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(uniform.var()) == pytest.approx(1 / 12, abs=0.002)
    normal = draw(SEED, (200, 500), stream_of("n"), "normal").double()
    assert float(normal.mean()) == pytest.approx(0.0, abs=0.015)
    assert float(normal.var()) == pytest.approx(1.0, abs=0.02)
    within = float((normal.abs() < 1.0).double().mean())
    assert within == pytest.approx(0.6827, abs=0.01)


def test_scalars_and_empty_tensors_can_be_drawn() -> None:
    assert draw(SEED, (), 1, "uniform").shape == ()
    assert draw(SEED, (0, 3), 1, "uniform").shape == (0, 3)
