"""The memory that a plan predicts for a rank, and the allocator's own count.

    python benchmarks/memory_fidelity.py --layers 6 --hidden 512 --batch 8

GPT-2 and Llama from transformers, random weights, AdamW, each trained by data, by
tensor parallelism and with every parameter in pieces, on local gloo ranks. What is
measured is a step and the optimizer's: all allocations and releases of a rank.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

import partita as pt
from partita.runtime.launch import launch
from partita.runtime.measure_memory import MeasuredMemory, measure_step

Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model and its batch."""

    model: str
    layers: int
    hidden: int
    batch: int
    sequence: int
    vocabulary: int

    def build(self) -> tuple[torch.nn.Module, Batch]:
        """Return the model and a batch of token ids, which are their own labels."""
        torch.manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (self.batch, self.sequence))
        return _BUILD[self.model](self), {"input_ids": ids, "labels": ids.clone()}


def _gpt2(case: Case) -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=case.layers,
        n_embd=case.hidden,
        n_head=8,
        vocab_size=case.vocabulary,
        n_positions=case.sequence,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _llama(case: Case) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=case.layers,
        hidden_size=case.hidden,
        intermediate_size=8 * case.hidden // 3 // 64 * 64,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=case.vocabulary,
        max_position_embeddings=case.sequence,
    )
    return transformers.LlamaForCausalLM(config)


_BUILD: dict[str, Callable[[Case], torch.nn.Module]] = {
    "gpt2": _gpt2,
    "llama": _llama,
}

COLUMNS = ("c_attn", "c_fc", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROWS = ("c_proj", "o_proj", "down_proj")


def data_parallel(model: torch.nn.Module) -> dict[str, str]:
    """Return pins for whole parameters and a split batch."""
    pins = {name: "B use=B" for name, _ in model.named_parameters()}
    return pins | {"input_ids": "S(0)", "labels": "S(0)"}


def tensor_parallel(model: torch.nn.Module) -> dict[str, str]:
    """Return Megatron's pins: first matrices by columns, second ones by rows."""
    pins: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[-2]
        is_conv1d = layer.startswith("c_")  # transformers' Conv1D keeps [in, out]
        out = 1 if is_conv1d and parameter.ndim == 2 else 0
        third = parameter.shape[out] // 3
        segments = f"; {third}|{third}|{third}" if layer == "c_attn" else ""
        if layer in COLUMNS:
            pins[name] = f"S({out}{segments})"
        elif layer in ROWS and parameter.ndim == 2:
            pins[name] = f"S({1 - out})"
        else:
            pins[name] = "B"
    return pins


def in_pieces(model: torch.nn.Module) -> dict[str, str]:
    """Return pins that store every parameter in pieces, whole where it is used."""
    pins = {name: "S(0) use=B" for name, _ in model.named_parameters()}
    return pins | {"input_ids": "S(0)", "labels": "S(0)"}


STRATEGIES: dict[str, Callable[[torch.nn.Module], dict[str, str]]] = {
    "data parallel": data_parallel,
    "tensor parallel": tensor_parallel,
    "in pieces": in_pieces,
}


def measure(case: dict[str, Any], document: dict[str, Any]) -> MeasuredMemory:
    """Return this rank's memory over a step of the model and of AdamW."""
    model, batch = Case(**case).build()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, **batch)


def main() -> None:
    """Print, per model and strategy, what was predicted and measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="gpt2,llama")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=8192)
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # of the ranks: no lines of torch's
    for name in options.models.split(","):
        case = Case(
            name,
            options.layers,
            options.hidden,
            options.batch,
            options.sequence,
            options.vocabulary,
        )
        model, batch = case.build()
        for strategy in options.strategies.split(","):
            pins = STRATEGIES[strategy](model)
            mesh = pt.Mesh(tp=options.ranks)
            plan = pt.plan(model, mesh=mesh, options=pt.Options(pins=pins), **batch)
            found = launch(measure, options.ranks, (asdict(case), plan.to_dict()))
            measured = max(memory.peak_bytes for memory in found)
            error = plan.predicted.bytes / measured - 1
            print(
                f"{name} {strategy:<15}  predicted {plan.predicted.bytes / 2**20:8.2f} "
                f"MiB  measured {measured / 2**20:8.2f} MiB  {error:+.2%}"
            )


if __name__ == "__main__":
    main()
