"""Long searches say what they do; short ones say nothing."""

from __future__ import annotations

import logging

import pytest

from partita.cli.progress import shown

LOGGER = logging.getLogger("partita.somewhere")


def test_what_is_quick_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(patience_s=60.0):
        LOGGER.info("captured")
    assert capsys.readouterr().err == ""


def test_once_it_takes_long_all_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(patience_s=60.0):
        LOGGER.info("first")
    with shown(patience_s=0.0):
        LOGGER.info("mesh %s", "tp=2")
        LOGGER.debug("not this")
    assert capsys.readouterr().err == "partita: mesh tp=2\n"
    LOGGER.info("after it")
    assert capsys.readouterr().err == ""
