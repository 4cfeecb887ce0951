"""The page's colours can be read, and told apart by those who see fewer of them.

Sources: contrast by WCAG 2.2, success criteria 1.4.3 and 1.4.11; colours as seen
without one kind of cone by G. Machado, M. Oliveira, L. Fernandes, "A Physiologically-
based Model for Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009, severity
1; distances in CIELAB (CIE 76) under D65.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import partita.page.page

Colour = npt.NDArray[np.float64]

CSS = (Path(partita.page.page.__file__).parent / "page.css").read_text()
THEMES = ("light", "dark")
SEEN_BY = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
WORK = ("work-F", "work-B", "work-W", "work-once", "work-axis", "work-send")
SERIES = ("blue", "orange", "green", "sky", "purple", "vermillion", "yellow", "dark")
TOLD_APART = 10.0
READABLE, VISIBLE = 4.5, 3.0


def colour(name: str, theme: str) -> Colour:
    """Return a colour of the page in linear light."""
    found = re.search(rf"--{name}:\s*(?:light-dark\()?([^;]+?)\)?;", CSS)
    assert found, name
    either = [text.strip() for text in found[1].split(",")]
    text = either[THEMES.index(theme) if len(either) > 1 else 0].lstrip("#")
    coded = np.array([int(text[at : at + 2], 16) / 255 for at in (0, 2, 4)])
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def contrast(first: Colour, second: Colour) -> float:
    """Return the contrast of two colours, from 1 to 21.

    >>> round(contrast(np.ones(3), np.zeros(3)), 1)
    21.0
    """
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted((float(weights @ first), float(weights @ second)))
    return (high + 0.05) / (low + 0.05)


def lab(linear: Colour) -> Colour:
    """Return a colour in CIELAB."""
    to_xyz = np.array(
        [
            [0.4124, 0.3576, 0.1805],
            [0.2126, 0.7152, 0.0722],
            [0.0193, 0.1192, 0.9505],
        ]
    )
    ratio = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SEEN_BY)
@pytest.mark.parametrize("names", [WORK, SERIES], ids=["work", "series"])
def test_what_is_unlike_looks_unlike(
    names: tuple[str, ...], sight: str, theme: str
) -> None:
    seen = {name: lab(SEEN_BY[sight] @ colour(name, theme)) for name in names}
    near = {
        pair: round(distance, 1)
        for pair in combinations(names, 2)
        if (distance := float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])))
        < TOLD_APART
    }
    assert not near


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read(theme: str) -> None:
    pairs = [
        *((text, under) for text in ("text", "quiet") for under in ("ground", "sunk")),
        *(("text", under) for under in ("raised", "split", "broadcast", "partial")),
        *(("link", under) for under in ("ground", "raised")),
        ("moves", "moves-ground"),
        *(("on-work", under) for under in WORK),
    ]
    found = {p: contrast(colour(p[0], theme), colour(p[1], theme)) for p in pairs}
    assert not {pair: round(c, 2) for pair, c in found.items() if c < READABLE}


@pytest.mark.parametrize("theme", THEMES)
def test_bars_stand_out_from_the_page(theme: str) -> None:
    ground = colour("ground", theme)
    found = {name: contrast(colour(name, theme), ground) for name in WORK}
    assert not {name: round(c, 2) for name, c in found.items() if c < VISIBLE}
