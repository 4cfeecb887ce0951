"""Options that no plan can follow are refused when they are made."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import inf, nan
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
        *[
            (
                {"time_limit": value},
                f"time_limit is {text}; want seconds above 0, to 1e9, or inf",
            )
            for value, text in [
                *((each, repr(each)) for each in (0, -1.5, "1m", True, nan, None)),
                (10**400, f"1{'0' * 56}..."),
                (10**5000, "a number of too many digits"),
            ]
        ],
        *[
            (
                {name: value},
                f"{name} is {text}; want e.g. '24GiB' or a whole number of bytes",
            )
            for name in ("memory", "bucket")
            for value, text in [
                *(
                    (each, repr(each))
                    for each in ("24 apples", "0B", "0.5B", "nan", "\u0664GiB", b"4GiB")
                ),
                *((each, repr(each)) for each in (nan, inf, 1.5, -1, True, False)),
            ]
        ],
        *[
            ({name: value}, f"{name} is {text}; want at most 2**60 bytes")
            for name in ("memory", "bucket")
            for value, text in [
                ("9" * 400 + "GiB", f"'{'9' * 56}..."),
                ("1" * 5000, f"'{'1' * 56}..."),
                (10**400, f"1{'0' * 56}..."),
                (10**5000, "a number of too many digits"),
            ]
        ],
        (
            {"bucket": None},
            "bucket is None; want e.g. '24GiB' or a whole number of bytes",
        ),
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
    ],
)
def test_bad_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOptions) as caught:
        Options(**options)
    assert str(caught.value) == message


def test_memory_is_a_size() -> None:
    assert Options(memory="24GiB").memory == "24GiB"
    assert Options(memory=1 << 30).memory == 1 << 30
    assert Options(memory=64e9, bucket=0).memory == 64e9


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().train = False  # type: ignore[misc]
