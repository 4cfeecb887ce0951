"""A vocabulary that no number of ranks divides, split without ever being gathered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tests.models.searched import searched
from tests.slow import slow

import partita as pt
from partita.compiler.capture.capture import capture
from partita.one_mesh.planner import Planner
from partita.verifying.verification import Verifier

VOCABULARY = 50257  # GPT-2's own
TABLE = "transformer.wte.weight"


def _built() -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return a tiny GPT-2 of the real vocabulary: 5 texts of 7 tokens, dropout on."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1,
        n_embd=32,
        n_head=4,
        n_positions=16,
        vocab_size=VOCABULARY,
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.0,
    )
    ids = torch.randint(0, VOCABULARY, (5, 7))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize(
    "mesh", [pt.Mesh(tp=2), slow(pt.Mesh(tp=4)), pt.Mesh(dp=2, tp=2)]
)
def test_logits_and_table_stay_split_from_end_to_end(mesh: pt.Mesh) -> None:
    model, batch = _built()
    split = f"({', '.join(['B'] * (mesh.ndim - 1) + ['S(0)'])},)"
    options = pt.Options(pins={TABLE: f"{split} use={split}"}, time_limit=30)
    captured = capture(model, (), batch)
    plan = searched(Planner(captured, "GPT2", mesh, options))

    assert {"_log_softmax/0", "gather/0", "transformer.wte/embedding/0"} <= set(
        plan.expanded
    )
    assert [b for b in plan.boxings if b.producer == f"parameter:{TABLE}"] == []
    # Along what splits them is sent what is as large as activations, a small sum once
    # to each rank; logits would be 1.4 MB.
    sent = (total.bytes for total in plan.collectives if total.axis == "tp")
    assert sum(sent) < mesh.sizes[-1] * 20_000
    draws = captured.program.draws
    report = Verifier.of(model, (), batch, draws=draws).verify_captured(captured, plan)
    assert report.ok, str(report)
