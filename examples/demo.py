"""Train GPT-2 on two ranks and in one process: the losses agree, step by step.

$ make demo
GPT2LMHeadModel on mesh ranks=2: 2 ranks, hardware cpu-gloo, training
...
verify: ok: 54 tensors, largest error 3.32e-15 in double precision, ...
...
step  two ranks  one process  difference
   1   5.599178     5.599177     4.8e-07
...
  30   2.866266     2.866265     2.4e-07
largest difference 7.2e-07, allowed 2.0e-05: two ranks train as one process does
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn

import partita as pt
from partita.runtime.launch import launch

TEXT = Path(__file__).parent / "data" / "alice.txt"
STEPS, BATCH, LENGTH = 30, 8, 128
SIZES = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": LENGTH}
BYTES = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}  # a token is a byte
DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# Two ranks add up in another order, and a float32 near 5 is exact to 4.8e-7. In these
# 30 steps that grows to 7e-7; if one bias went untrained, the difference were 1e-4.
ALLOWED = 2e-5


def build() -> tuple[nn.Module, tuple[()], dict[str, Any]]:
    """Return transformers' own GPT-2, and the first batch."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(**cast(Any, SIZES | BYTES | DROPOUT))
    return transformers.GPT2LMHeadModel(config), (), next(batches())


def batches() -> Iterator[dict[str, Any]]:
    """Yield the batches of all steps, cut out of the text at random places."""
    text = torch.tensor(list(TEXT.read_bytes()))
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - LENGTH, (STEPS, BATCH, 1), generator=generator)
    for tokens in text[starts + torch.arange(LENGTH)]:
        yield {"input_ids": tokens, "labels": tokens}


def train(step: Callable[..., Any], parameters: Iterable[Any]) -> Iterator[float]:
    """Train on all batches; yield the loss of each."""
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    for batch in batches():
        loss = step(**batch)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def step_alone(model: nn.Module, **batch: torch.Tensor) -> torch.Tensor:
    """Do in one process what ``ParallelProgram.step`` does on all ranks."""
    loss: torch.Tensor = model(**batch).loss
    loss.backward()
    return loss


def train_rank(plan: pt.Plan) -> list[float]:
    """Train on this rank, which is given whole batches and takes its part of them."""
    program = pt.compile(build()[0], plan, device="cpu")
    return list(train(program.step, program.parameters()))


def main() -> None:
    """Plan, verify, train both ways, compare."""
    torch.set_num_threads(1)
    model, args, kwargs = build()
    plan = pt.plan(model, *args, mesh=pt.Mesh(ranks=2), **kwargs)
    print(plan, end="\n\n")
    report = pt.verify(model, *args, plan=plan, **kwargs)
    print(report, end="\n\n", flush=True)
    alone = list(train(partial(step_alone, model), model.parameters()))
    ranks = launch(train_rank, plan.mesh.size, (plan,))[0]
    print("step  two ranks  one process  difference")
    for step, (one, other) in enumerate(zip(ranks, alone, strict=True), start=1):
        print(f"{step:4d}   {one:.6f}     {other:.6f}     {abs(one - other):.1e}")
    largest = max(abs(one - other) for one, other in zip(ranks, alone, strict=True))
    result = f"largest difference {largest:.1e}, allowed {ALLOWED:.1e}"
    if not (report.ok and largest <= ALLOWED and ranks[-1] < ranks[0] - 1):
        sys.exit(f"{result}, loss {ranks[0]:.3f} -> {ranks[-1]:.3f}: FAILED")
    print(f"{result}: two ranks train as one process does")


if __name__ == "__main__":
    main()
