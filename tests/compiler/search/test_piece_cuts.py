"""Models of pairs: a microbatch has a part of each half of what enters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import BadOptions
from partita.compiler.ir.sbp import Broadcast, Split
from partita.compiler.rules.table import default_rules
from partita.compiler.search.in_time import InTime

Loss = Callable[["Scorer", Any, Any], Tensor]
BATCH, SEQUENCE, WORDS = 16, 6, 8


class Scorer(nn.Module):
    """Scores texts ``[batch, sequence]`` by how likely their words are."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
        self.loss = loss

    def score(self, texts: Tensor, counts: Tensor) -> Tensor:
        """Return one number for each text, of the words that count."""
        told = self.layer(self.words(texts).tanh()).log_softmax(-1)
        return (told.gather(2, texts[..., None]).squeeze(-1) * counts).sum(1)

    def forward(self, texts: Tensor, counts: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self, texts, counts)


def preferred(better: Tensor, worse: Tensor) -> Tensor:
    return -functional.logsigmoid(better - worse).mean()


def of_halves(model: Scorer, texts: Tensor, counts: Tensor) -> Tensor:
    scores, half = model.score(texts, counts), BATCH // 2
    return preferred(scores[:half], scores[half:])


def of_chunks(model: Scorer, texts: Tensor, counts: Tensor) -> Tensor:
    better, worse = model.score(texts, counts).chunk(2)
    return preferred(better, worse)


def of_neighbours(model: Scorer, texts: Tensor, counts: Tensor) -> Tensor:
    scores = model.score(texts, counts)
    return preferred(scores[::2], scores[1::2])


def of_rows(model: Scorer, texts: Tensor, counts: Tensor) -> Tensor:
    better, worse = model.score(texts, counts).view(2, -1)
    return preferred(better, worse)


def of_joined(model: Scorer, texts: Tensor, counts: Tensor) -> Tensor:
    twice = torch.cat([texts, texts.flip(1)]), torch.cat([counts, counts])
    better, worse = model.score(*twice).split(BATCH)
    return preferred(better, worse) + model.score(texts, counts).mean()


def of_unequal(model: Scorer, texts: Tensor, counts: Tensor) -> Tensor:
    scores = model.score(texts, counts)
    return preferred(scores[:4].sigmoid(), scores[4:8]) + scores[8:].mean()


def given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    shape = BATCH, SEQUENCE
    return torch.randint(0, WORDS, shape), torch.randint(0, 2, shape).float()


ALL = [of_halves, of_chunks, of_neighbours, of_rows, of_joined]


@pytest.mark.parametrize("loss", ALL)
def test_pairs_are_kept_together(loss: Loss) -> None:
    model, args = Scorer(loss), given()
    options = pt.Options(microbatches=4)
    plan = pt.plan(model, *args, mesh=pt.Mesh(tp=2), options=options)
    assert plan.microbatches == 4
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report
    assert report.max_error <= 1e-9


@pytest.mark.parametrize("loss", [of_halves, of_neighbours])
def test_pairs_are_kept_together_in_a_pipeline(loss: Loss) -> None:
    model, args = Scorer(loss), given()
    options = pt.Options(microbatches=2, time_limit=8)
    plan = pt.plan(model, *args, mesh=pt.Mesh(pp=2, dp=1), options=options)
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report


def test_inputs_are_cut_where_what_is_made_of_them_is() -> None:
    program = capture(Scorer(of_halves), given(), {}).program
    chosen = InTime(program, default_rules).choose(2)
    halves = Split(0, (BATCH // 2, BATCH // 2))
    assert chosen["input:texts"].results == (Broadcast(),)
    assert chosen["words/embedding/0"].results == (halves,)
    assert chosen["mul.Tensor/0"].operands == (halves, halves)
    assert chosen["slice.Tensor/0"].results == (Split(0),)


@pytest.mark.parametrize("loss", ALL)
def test_of_another_number_all_is_chosen_anew_where_rules_allow_something_else(
    loss: Loss,
) -> None:
    program = capture(Scorer(loss), given(), {}).program
    in_time, refused = InTime(program, default_rules), 0
    for count in (2, 8, 4, 16, 2, 32):  # 16 cuts no half, 32 nothing
        found: list[object] = []
        for choose in (in_time.choose, InTime(program, default_rules).choose):
            try:
                found.append(choose(count))
            except BadOptions as error:
                found.append(str(error))
        again, anew = found
        assert again == anew, count
        refused += isinstance(anew, str)
    assert 1 <= refused <= 2


def test_neighbours_are_in_one_part_as_they_lie() -> None:
    program = capture(Scorer(of_neighbours), given(), {}).program
    chosen = InTime(program, default_rules).choose(2)
    assert chosen["input:texts"].results == (Split(0),)
    assert chosen["slice.Tensor/0"].results == (Split(0),)


def test_pieces_that_are_cut_in_two_ways_are_refused() -> None:
    program = capture(Scorer(of_unequal), given(), {}).program
    with pytest.raises(BadOptions, match=r"slice.Tensor.*needs the whole batch"):
        InTime(program, default_rules).choose(2)


def test_what_is_returned_of_halves_comes_together() -> None:
    class Returning(Scorer):
        def forward(self, texts: Tensor, counts: Tensor) -> Any:
            scores = self.score(texts, counts)
            loss = preferred(scores[:4], scores[4:])
            return {"loss": loss, "scores": scores}

    model, args = Returning(of_halves), tuple(x[:8] for x in given())
    options = pt.Options(microbatches=2)
    plan = pt.plan(model, *args, mesh=pt.Mesh(tp=2), options=options)
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report
    assert any("scores" in name for name in report.errors)
