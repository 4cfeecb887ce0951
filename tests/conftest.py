"""Hang timer, GPU skip, hypothesis profile and a browser, for every test."""

import faulthandler
import gc
import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# How long an example takes says more of the machine's other work than of the code.
# The gate tries the same examples each time; ``make test-all`` looks for new ones.
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("gate")

# A worker holds more the longer it runs, nearly all of it for good; looked through as
# often as Python does by itself, that took a tenth of the gate.
gc.set_threshold(10_000, 20, 10)

# Partita, too, has all looked through once much is new (compiler/collection.py).
_MOST_UNSEEN = 50_000_000

# What convolutions hold is predicted of oneDNN's kernels for AVX2 (see
# compiler/cost/convolution_blocks.py), whatever the machine that tests run on has.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

# The longest compares with all pipelines of a model, each searched within a limit.
SLOW_TEST_S = 3600.0  # faulthandler_timeout in pyproject.toml is for all the others

_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # The real one: while a test runs, descriptor 2 belongs to pytest's capture.
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


def pytest_runtest_setup(item: pytest.Item) -> None:
    # pytest has just set its own timer; a new one takes its place, and pytest ends it.
    if item.get_closest_marker("slow"):
        stderr = item.config.stash[_STDERR]
        faulthandler.dump_traceback_later(SLOW_TEST_S, exit=True, file=stderr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch  # here, so that a run without GPU tests need not wait for it

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _rarely_looked_through() -> Generator[None]:
    from partita.compiler import collection  # here: the controller runs no test

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(collection, "_MOST_UNSEEN", _MOST_UNSEEN)
        yield


@pytest.fixture(autouse=True)
def _no_process_group_is_left() -> Generator[None]:
    """End what a program in this process started, so that tests run in any order."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def browser() -> Generator["Browser"]:
    """Yield one browser for all tests: Playwright starts once in a process."""
    from tests.browser import started_browser  # here: few tests need it

    with started_browser() as browser:
        yield browser
