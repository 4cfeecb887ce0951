"""Train GPT-2 on two ranks and, beside that, in one process.

    make demo

"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import transformers

import partita as pt
from partita.runtime.launch import launch

TEXT = Path(__file__).parent / "data" / "alice.txt"
STEPS, BATCH, LENGTH = 30, 8, 128

Batch = dict[str, torch.Tensor]


def build() -> tuple[torch.nn.Module, tuple[()], Batch]:
    """Return transformers' GPT-2 as it is, and the first batch."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=4,
        n_embd=256,
        n_head=4,
        vocab_size=256,  # a token is a byte
        n_positions=LENGTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config), (), batches()[0]


def batches() -> list[Batch]:
    """Return the batches of all steps, cut out of the text at random places."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - LENGTH, (STEPS, BATCH), generator=generator)
    return [
        {"input_ids": tokens, "labels": tokens}
        for tokens in text[starts[:, :, None] + torch.arange(LENGTH)]
    ]


def train_alone() -> list[float]:
    """Train in this process, as one does without Partita."""
    model, _, _ = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    for batch in batches():
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_rank(plan: pt.Plan) -> list[float]:
    """Train on this rank; every rank is given the whole batch and takes its part."""
    model, _, _ = build()
    program = pt.compile(model, plan)
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    losses: list[float] = []
    for batch in batches():
        loss = program.step(**batch)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    t0 = time.time()
    model, args, kwargs = build()
    plan = pt.plan(model, *args, mesh=pt.Mesh(ranks=2), **kwargs)
    print(plan, "\n")
    print("plan", time.time() - t0)
    t0 = time.time()
    alone = train_alone()
    print("alone", time.time() - t0)
    t0 = time.time()
    together = launch(train_rank, plan.mesh.size, (plan,))[0]
    print("ranks", time.time() - t0)
    for a, b in zip(together, alone):
        print(a, b, abs(a - b))


if __name__ == "__main__":
    main()
