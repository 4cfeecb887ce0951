"""What is drawn by Python or numpy is refused, by its line."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor

from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed


class Skipping(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        y = x * self.w
        if random.random() < 0.5:  # HERE
            y = y + x
        return y.sum()


class Choosing(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        shift = random.choice([1, 2])  # HERE
        return (x.roll(shift, 1) * self.w).sum()


class Picking(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        shift = int(np.random.choice([1, 2]))  # HERE
        return (x.roll(shift, 1) * self.w).sum()


class Mixing(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        share = self.share()
        return (x * self.w * share).sum()

    def share(self) -> float:
        return float(np.random.beta(1.0, 1.0))  # HERE


class Never(small.Scale):
    """Skips no layer: none is to be skipped."""

    part = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.w
        for _ in range(3):
            if random.random() < self.part or np.random.uniform() < self.part:
                continue
            y = y + x
        return y.sum()


class Rarely(Never):
    part = 0.01

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Aside(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        drawn = random.Random(0).random() + np.random.default_rng(0).random()
        return (x * self.w * drawn).sum()


@pytest.mark.parametrize("kind", [Skipping, Choosing, Picking, Mixing])
@pytest.mark.parametrize(
    ("wrap", "seed"),
    [(torch.nn.Sequential, 0), (torch.nn.Sequential, 1), (small.Around, 0)],
)
def test_a_number_that_is_drawn_elsewhere_is_refused(
    kind: type[small.Scale], wrap: type[torch.nn.Module], seed: int
) -> None:
    """Whatever was drawn first: of two choices, seeds 0 and 1 make either."""
    model = wrap(kind())
    random.seed(seed)
    np.random.seed(seed)
    with pytest.raises(CaptureFailed) as caught:
        capture(model, (small.batch(),), {})
    where = f"{small.line_of(kind)}: cannot capture {type(model).__name__}: a number is"
    assert str(caught.value).startswith(where)


def test_a_number_that_nothing_depends_on_may_be_drawn() -> None:
    before = random.getstate()
    capture(Never(), (small.batch(),), {})
    assert random.getstate() != before
    with pytest.raises(CaptureFailed, match="drawn by Python's random or by numpy"):
        capture(Rarely(), (small.batch(),), {})


def test_a_generator_of_ones_own_is_not_seen() -> None:
    capture(Aside(), (small.batch(),), {})


_FIRST = """
import sys, torch
from partita.compiler.capture import capture

made = []
original = capture.read_roles

def counting(*args):
    made.append(args)
    return original(*args)

capture.read_roles = counting
assert "numpy.random" not in sys.modules

class Loading(torch.nn.Linear):
    def forward(self, input):
        import numpy.random
        return super().forward(input).sum()

capture.capture(Loading(2, 2), (torch.ones(2, 2),), {})
print(len(made))
"""


def test_numpys_numbers_that_are_loaded_meanwhile_were_not_drawn() -> None:
    """A first capture may load them with much of torch: it was made three times."""
    done = subprocess.run(
        [sys.executable, "-c", _FIRST], capture_output=True, text=True
    )
    assert done.stdout == "1\n", done.stderr
