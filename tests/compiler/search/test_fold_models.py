"""Equal blocks decided once cost the same as decided one by one, on real models."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers

from partita.compiler.capture.capture import capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.fold import Fold
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.solver import solve
from partita.options import Options
from partita.planner import Planner

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 96,
    "max_position_embeddings": 32,
}
_KINDS: dict[str, tuple[Any, Any]] = {
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config),
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig),
}
_MORE: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


@cache
def posed(name: str, layers: int) -> Posed:
    kind, config = _KINDS[name]
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    sizes = {**_SIZES, **_MORE[name], **special, "num_hidden_layers": layers}
    ids = torch.zeros(4, 16, dtype=torch.long)
    inputs = {"input_ids": ids, "labels": ids}
    captured = capture(kind(config(**sizes)), (), inputs)
    return Planner(captured, name, Mesh(tp=2), Options()).posed


@pytest.mark.slow
@pytest.mark.parametrize("layers", [4, 8])
@pytest.mark.parametrize("name", sorted(_KINDS))
def test_folding_costs_nothing(name: str, layers: int) -> None:
    problem = posed(name, layers).problem
    fold = Fold.of(problem)
    assert fold.has_classes
    folded, whole = solve(problem, 120, fold=fold), solve(problem, 120)
    assert folded.status == whole.status == "optimal"
    assert folded.seconds == pytest.approx(whole.seconds, rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_KINDS))
def test_within_a_limit_what_folds_is_bounded_by_what_does_not(name: str) -> None:
    whole = posed(name, 4)
    free = solve(whole.problem, 60)
    found = LimitedSearch(whole, free, "adamw", Clock.of(30))
    limit = int(0.8 * found.run(1 << 40).keeping.peak_bytes)
    folded = found.run(limit)
    apart = LimitedSearch(whole, free, "adamw", Clock.of(60))
    apart.fold = Fold.none(whole.problem)
    unfolded = apart.run(limit)
    assert folded.fits
    assert unfolded.fits
    assert unfolded.bound_s <= folded.seconds * (1 + 1e-9)
