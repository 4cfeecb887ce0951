"""Plan Llama as transformers ships it, ask why, verify, and train on two ranks.

.venv/bin/python examples/transformers_model.py
"""

from __future__ import annotations

import torch
import transformers

import partita as pt
from partita.runtime.launch import launch

Batch = dict[str, torch.Tensor]


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
    print(plan, "\n")
    print(plan.explain("model.layers.0.mlp.down_proj.weight"), "\n")
    print(pt.verify(model, *args, plan=plan, **kwargs), "\n")
    of_rank_0, of_rank_1 = launch(train, 2, (plan,))
    print("losses on rank 0:", *(f"{loss:.6f}" for loss in of_rank_0))
    print("losses on rank 1:", *(f"{loss:.6f}" for loss in of_rank_1))


if __name__ == "__main__":
    main()
