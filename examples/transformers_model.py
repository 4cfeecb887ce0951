"""Plan Llama as transformers ships it, ask why, verify, and train on two ranks.

$ .venv/bin/python examples/transformers_model.py
LlamaForCausalLM on mesh ranks=2: 2 ranks, hardware cpu-gloo, training
...
model.layers.*.mlp.up_proj.weight               x2  f32[688, 256]   (S(0),)  same ...
model.layers.*.mlp.down_proj.weight             x2  f32[256, 688]   (S(1),)  same ...
...
model.layers.0.mlp.down_proj.weight: parameter, f32[256, 688]
...
  why        the cheapest for the whole step; the next best stand below
...
(S(1),)    chosen           510 us ...
(S(0),)    +551 us a step   +0 s ...
(B,)       +1.21 ms a step  +470 us ...
...
verify: ok: 23 tensors, largest error 2.44e-15 in double precision, 7.39e-07 in ...
...
losses on rank 0: 6.984918 6.358297 5.832458
losses on rank 1: 6.984918 6.358297 5.832458
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

import partita as pt
from partita.runtime.launch import launch

Batch = dict[str, Any]


def build() -> tuple[torch.nn.Module, tuple[()], Batch]:
    """Return a model and one global batch; ``partita plan`` takes this function too."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=256,
        intermediate_size=688,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1024,
    )
    tokens = torch.randint(1024, (4, 64))
    model = transformers.LlamaForCausalLM(config)
    return model, (), {"input_ids": tokens, "labels": tokens}


def train(plan: pt.Plan) -> list[float]:
    """Train on this rank, which is given the whole batch and takes its part of it."""
    model, args, kwargs = build()
    program = pt.compile(model, plan, device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    losses: list[float] = []
    for _ in range(3):
        loss = program.step(*args, **kwargs)
        program.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Plan, explain, verify, train."""
    model, args, kwargs = build()
    plan = pt.plan(model, *args, mesh=pt.Mesh(ranks=2), **kwargs)
    print(plan, end="\n\n")
    print(plan.explain("model.layers.0.mlp.down_proj.weight"), end="\n\n")
    print(pt.verify(model, *args, plan=plan, **kwargs), end="\n\n", flush=True)
    of_rank_0, of_rank_1 = launch(train, 2, (plan,))
    print("losses on rank 0:", *(f"{loss:.6f}" for loss in of_rank_0))
    print("losses on rank 1:", *(f"{loss:.6f}" for loss in of_rank_1))


if __name__ == "__main__":
    main()
