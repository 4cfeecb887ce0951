"""Train GPT-2 on two ranks and in one process: the losses agree, step by step.

make demo

GPT2LMHeadModel on mesh ranks=2: 2 ranks, hardware cpu-gloo, training
step    256 ms predicted (compute 231 ms, communication ranks 18.8 ms, ...)
memory  111.6 MiB a rank predicted (activations 61.83 MiB, ...)
...
verify: ok: 54 tensors, largest error 3.32e-15 in double precision, ...
...
step  two ranks  one process  difference
   1   5.599178     5.599177     4.8e-07
   2   4.668512     4.668512     0.0e+00
...
  30   2.866266     2.866265     2.4e-07
largest difference 7.2e-07, allowed 2.0e-05: two ranks train as one process does
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import transformers
from torch import nn

import partita as pt
from partita.runtime.launch import launch

TEXT = Path(__file__).parent / "data" / "alice.txt"
STEPS, BATCH, LENGTH = 30, 8, 128

# Sums in another order round otherwise: a float32 loss between 4 and 8 to 4.8e-7. In 30
# steps that grows to 7e-7; without the gradient of one bias it would be 1e-4.
ALLOWED_DIFFERENCE = 2e-5

Batch = dict[str, torch.Tensor]
Gradients = Callable[..., torch.Tensor]  # of a batch, into .grad; returns the loss


def build() -> tuple[nn.Module, tuple[()], Batch]:
    """Return transformers' own GPT-2, and the first batch."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    shape = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": LENGTH}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}  # bytes
    config = transformers.GPT2Config(**shape, **dropout, **tokens)
    return transformers.GPT2LMHeadModel(config), (), batches()[0]


def batches() -> list[Batch]:
    """Return the batches of all steps, cut out of the text at random places."""
    text = torch.tensor(list(TEXT.read_bytes()))
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - LENGTH, (STEPS, BATCH, 1), generator=generator)
    found = text[starts + torch.arange(LENGTH)]
    return [{"input_ids": tokens, "labels": tokens} for tokens in found]


def train(gradients: Gradients, parameters: Iterable[nn.Parameter]) -> Iterator[float]:
    """Take all steps; yield the loss of each."""
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    for batch in batches():
        loss = gradients(**batch)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def train_alone() -> list[float]:
    """Train in this process, as one does without Partita."""
    model, _, _ = build()

    def gradients(**batch: torch.Tensor) -> torch.Tensor:
        loss = model(**batch).loss
        loss.backward()
        return loss

    return list(train(gradients, model.parameters()))


def train_rank(plan: pt.Plan, alone: list[float]) -> list[float]:
    """Train on this rank, which is given whole batches and takes its part of them."""
    model, _, _ = build()
    program = pt.compile(model, plan, device="cpu")
    losses: list[float] = []
    for loss, other in zip(train(program.step, program.parameters()), alone):
        losses.append(loss)
        if os.environ["RANK"] == "0":
            row = f"{len(losses):4d}   {loss:.6f}     {other:.6f}"
            print(f"{row}     {abs(loss - other):.1e}", flush=True)
    return losses


def main() -> None:
    """Plan, verify, train both ways, compare."""
    torch.set_num_threads(1)
    model, args, kwargs = build()
    plan = pt.plan(model, *args, mesh=pt.Mesh(ranks=2), **kwargs)
    print(plan, end="\n\n")
    print(pt.verify(model, *args, plan=plan, **kwargs), end="\n\n")
    alone = train_alone()
    print("step  two ranks  one process  difference", flush=True)
    losses = launch(train_rank, plan.mesh.size, (plan, alone))[0]
    largest = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
    if not largest <= ALLOWED_DIFFERENCE:
        sys.exit(f"demo: losses differ by {largest:.1e}, over {ALLOWED_DIFFERENCE}")
    if not losses[-1] < losses[0] - 1:
        sys.exit(f"demo: the loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    print(
        f"largest difference {largest:.1e}, allowed {ALLOWED_DIFFERENCE:.1e}: ", end=""
    )
    print("two ranks train as one process does")


if __name__ == "__main__":
    main()
