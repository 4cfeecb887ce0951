"""Options that no plan can follow are refused when they are made."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from partita.compiler.errors import BadOptions
from partita.compiler.rules.table import default_rules
from partita.options import Options


def test_defaults() -> None:
    options = Options()
    assert (options.train, options.optimizer, options.hardware) == (
        True,
        "adamw",
        "cpu-gloo",
    )
    assert options.pins == {}
    assert options.rules is default_rules


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"optimizer": "adamv"},
            "optimizer 'adamv' is not one of adam, adamw, fused-adamw, mixed-adamw, "
            "momentum-sgd, sgd",
        ),
        ({"time_limit": 0}, "time_limit is 0; want seconds above 0"),
        ({"time_limit": "1m"}, "time_limit is '1m'; want seconds above 0"),
        ({"loss": 3}, "loss is 3; want a function of the outputs"),
        ({"train": 0}, "train is 0; want True or False"),
        ({"fuse": "no"}, "fuse is 'no'; want True or False"),
        (
            {"microbatches": 0},
            "microbatches is 0; want a whole number from 1 on, or 'auto'",
        ),
        (
            {"microbatches": "many"},
            "microbatches is 'many'; want a whole number from 1 on, or 'auto'",
        ),
        (
            {"microbatches": 2, "train": False},
            "microbatches is 2, but only a training step is run in parts; with "
            "train=False want 1, or 'auto'",
        ),
        (
            {"precision": "bf16"},
            "precision is 'bf16'; want one of bfloat16, float16, or None, which leaves "
            "the model as it is",
        ),
        ({"wide_sums": 1}, "wide_sums is 1; want True or False"),
        (
            {"pins": ["up"]},
            "pins is ['up']; want placements by name, like {'h.*.mlp': 'on tp'}",
        ),
        (
            {"pins": {5: "B"}},
            "pins has 5; want the name of a parameter, buffer, input, node or module, "
            "or a pattern",
        ),
        ({"time_limit": -1.5}, "time_limit is -1.5; want seconds above 0"),
    ],
)
def test_bad_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOptions) as caught:
        Options(**options)
    assert str(caught.value) == message


def test_memory_is_a_size() -> None:
    assert Options(memory="24GiB").memory == "24GiB"
    assert Options(memory=1 << 30).memory == 1 << 30
    with pytest.raises(BadOptions, match="24 apples"):
        Options(memory="24 apples")


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().train = False  # type: ignore[misc]
