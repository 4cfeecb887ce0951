"""Time capture beside the two traces of torch's that it is made of.

    python benchmarks/capture_speed.py --problems 'llama-7b:16 gpt2:12'

A problem is MODEL:LAYERS, on the meta device, with a batch. In turn, ``--runs`` times
over: ``torch.export.export`` and AOTAutograd's joint trace of what it returns, as
anyone would call them, and ``capture``. Printed are medians of CPU seconds, and the
median of capture's ratio to the two together.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import transformers
from search_speed import MODELS
from torch import nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.fake_copy import fake_copy
from partita.compiler.capture.torch_private import export_joint
from partita.compiler.collection import collection_paused


class Scored(nn.Module):
    """A model that returns its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """Return the loss of ids and labels."""
        ids, labels = values
        return self.model(input_ids=ids, labels=labels).loss


def traced(model: nn.Module, batch: dict[str, Any]) -> tuple[float, float]:
    """Return the CPU seconds of torch's export and of its joint trace."""
    model, making = fake_copy(model)
    with making:
        inputs = tuple(torch.zeros_like(x, device="cpu") for x in batch.values())
    started = time.process_time()
    exported = torch.export.export(Scored(model), inputs, strict=False).module()
    between = time.process_time()
    export_joint(exported, inputs, {})
    return between - started, time.process_time() - between


def captured(model: nn.Module, batch: dict[str, Any]) -> float:
    """Return the CPU seconds of capture."""
    started = time.process_time()
    capture(model, (), batch)
    return time.process_time() - started


def main() -> None:
    """Print one line per problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default="llama-7b:16 gpt2:12")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(f"{'CPU seconds':16}{'export':>9}{'joint':>9}{'capture':>9}{'ratio':>8}")
    for problem in asked.problems.split():
        name, _, layers = problem.partition(":")
        rows: list[tuple[float, float, float]] = []
        for run in range(asked.runs + 1):
            with torch.device("meta"):
                model, batch = MODELS[name](int(layers) if run else 1)
            with collection_paused():
                row = (*traced(model, batch), captured(model, batch))
            rows += [row] if run else []  # the first one warms torch up
        ratio = statistics.median(row[2] / (row[0] + row[1]) for row in rows)
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{problem:16}{''.join(f'{each:9.2f}' for each in medians)}{ratio:8.2f}")


if __name__ == "__main__":
    main()
