"""Time the planner part by part: capture, pose, fold, solve, first plan, others.

    python benchmarks/search_speed.py --problems 'llama-7b:32@dp=8,tp=8 gpt2:12@tp=8'

A problem is MODEL:LAYERS@MESH. Every model is captured once, on the meta device; then
all problems are planned in turn, ``--runs`` times over, each from empty caches, as
``pt.plan`` does it; ``together`` are the searches of plans that the first is compared
with. Printed are medians of CPU seconds, what is added up beside the search's own
parts, and the most memory that the process had so far.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
import transformers
from torch import nn

from partita.compiler.collection import collection_paused
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.units import parse_bytes
from partita.compiler.search.fold import Fold
from partita.compiler.search.parts import Clock
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search
from partita.options import Options
from partita.whole_plans.beside_search import BesideSearch
from partita.whole_plans.light_messages import fastest_together

Built = tuple[nn.Module, dict[str, Any]]
_PARTS = ("pose", "fold", "solve", "first", "together")
_Made = TypeVar("_Made")


def _tokens(batch: int, sequence: int) -> dict[str, Any]:
    ids = torch.zeros(batch, sequence, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def llama(layers: int, hidden: int, inner: int, heads: int, vocabulary: int) -> Built:
    """Return a Llama and a batch, as the placement searches of others are timed on."""
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        vocab_size=vocabulary,
        use_cache=False,
    )
    tokens = _tokens(64, 2048 if hidden > 1024 else 128)
    return transformers.LlamaForCausalLM(config), tokens


def gpt2(layers: int, hidden: int, heads: int, sequence: int) -> Built:
    """Return a GPT-2 and a batch."""
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=hidden,
        n_head=heads,
        n_positions=sequence,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config), _tokens(64, sequence)


MODELS: dict[str, Callable[[int], Built]] = {
    "llama": partial(llama, hidden=256, inner=1024, heads=8, vocabulary=1024),
    "llama-7b": partial(llama, hidden=4096, inner=11008, heads=32, vocabulary=32000),
    "gpt2": partial(gpt2, hidden=768, heads=12, sequence=1024),
    "gpt3": partial(gpt2, hidden=12288, heads=96, sequence=2048),
}


def clear_caches() -> None:
    """Forget what Partita's modules remember of earlier searches."""
    for name, module in list(sys.modules.items()):
        if name.startswith("partita."):
            for value in vars(module).values():
                clear = getattr(value, "cache_clear", None)
                if clear is not None:
                    clear()


@dataclass
class Timed:
    """One problem, and the CPU seconds of each part of each run."""

    name: str
    planner: Planner
    capture_s: float
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {part: [] for part in _PARTS}
    )
    outcome: str = ""

    @classmethod
    def of(cls, name: str, options: Options) -> Timed:
        """Capture the model of a problem."""
        model_name, _, rest = name.partition(":")
        layers, _, mesh = rest.partition("@")
        with torch.device("meta"):
            model, batch = MODELS[model_name](int(layers))
        started = time.process_time()
        planner = Planner.of(model, (), batch, Mesh.parse(mesh), options)
        assert planner.captured.fingerprint  # belongs to the capture, made when asked
        return cls(name, planner, time.process_time() - started)

    def run(self) -> None:
        """Plan once, as ``pt.plan`` does without a memory limit."""
        clear_caches()
        gc.collect()  # what the problem before left is not this one's to clear away
        planner = replace(self.planner, known={})  # nothing posed or priced yet
        with collection_paused():
            posed = self._part("pose", lambda: planner.posed)
            fold = self._part("fold", lambda: _folded(posed.fold))
            clock = Clock.of(planner.options.time_limit)
            beside = BesideSearch(planner, clock)
            search = Search(planner, clock)
            assert self._part("solve", lambda: beside.free or search.choices)
            first = self._part("first", lambda: beside.first(search))
            most = parse_bytes(planner.options.bucket)
            plan = self._part(
                "together", lambda: fastest_together(planner, first, most, clock)
            )
        self.outcome = (
            f"{len(posed.problem.nodes)} nodes in {len(fold.members)} classes, "
            f"{plan.predicted.seconds * 1e3:.6g} ms, {plan.search.status}"
        )

    def _part(self, name: str, make: Callable[[], _Made]) -> _Made:
        started = time.process_time()
        made = make()
        self.seconds[name].append(time.process_time() - started)
        return made

    def __str__(self) -> str:
        medians = {part: statistics.median(s) for part, s in self.seconds.items()}
        runs = zip(*self.seconds.values(), strict=True)
        total = statistics.median(sum(run) for run in runs)
        parts = "".join(f"{seconds:8.2f}" for seconds in medians.values())
        return f"{self.name:28}{self.capture_s:9.2f}{parts}{total:8.2f}  {self.outcome}"


def _folded(fold: Fold) -> Fold:
    """Return the fold with all that it computes when it is asked for."""
    assert fold.members
    assert fold.shared
    assert fold.ties is not None
    return fold


def main() -> None:
    """Print one line per problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    problems = "llama-7b:32@dp=8,tp=8 llama-7b:96@dp=8,tp=8"
    parser.add_argument("--problems", default=problems)
    parser.add_argument("--hardware", default="h100-dgx")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to solve")
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    options = Options(hardware=asked.hardware, time_limit=asked.limit)
    timed = [Timed.of(name, options) for name in asked.problems.split()]
    for _ in range(asked.runs):
        for problem in timed:
            problem.run()
    heads = "".join(f"{part:>8}" for part in (*_PARTS, "search"))
    print(f"{'CPU seconds':28}{'capture':>9}{heads}")
    for problem in timed:
        print(problem)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"most memory: {peak / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
