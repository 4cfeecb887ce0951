"""Language models of any size and how people train them on several ranks: as pins."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

import partita as pt

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


def zero(stage: int) -> Callable[[torch.nn.Module], dict[str, str]]:
    """Return what pins the optimizer's state, gradients, then parameters in pieces."""
    cut = ("optimizer", "gradient", "storage")[:stage]
    held = ("storage", "gradient", "optimizer")
    pin = "; ".join(f"{h}=({'S(0)' if h in cut else 'B'},)" for h in held)

    def pins(model: torch.nn.Module) -> dict[str, str]:
        found = {name: f"{pin}; use=(B,)" for name, _ in model.named_parameters()}
        return found | {"input_ids": "S(0)", "labels": "S(0)"}

    return pins


def layers_again(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the pattern of every list of layers: what each makes is made again."""
    lists = (n for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList))
    return tuple(f"{name}.*" for name in lists)


def parameters_again(_: torch.nn.Module) -> tuple[str, ...]:
    """Return the pattern of all parameters: the backward gathers them anew."""
    return ("parameter:*",)


def nothing_again(_: torch.nn.Module) -> tuple[str, ...]:
    """Return no pattern."""
    return ()


@dataclass(frozen=True)
class Strategy:
    """What a plan is asked for: pins, and what is made again for the backward."""

    pins: Callable[[torch.nn.Module], dict[str, str]]
    again: Callable[[torch.nn.Module], tuple[str, ...]] = nothing_again


STRATEGIES: dict[str, Strategy] = {
    "data parallel": Strategy(data_parallel),
    "tensor parallel": Strategy(tensor_parallel),
    "ZeRO-1": Strategy(zero(1)),
    "ZeRO-2 + recompute": Strategy(zero(2), layers_again),
    "ZeRO-3": Strategy(zero(3)),
    "ZeRO-3 gathered twice": Strategy(zero(3), parameters_again),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for models, strategies and sizes."""
    parser.add_argument("--models", default="gpt2,llama")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=8192)


@dataclass(frozen=True)
class Planned:
    """A strategy's plan of a model; ``case`` builds the model again on a rank."""

    name: str
    case: dict[str, Any]
    plan: pt.Plan


def planned(
    options: argparse.Namespace, hardware: str | pt.Hardware
) -> Iterator[Planned]:
    """Yield the plan of each model by each strategy that was asked for."""
    for model_name in options.models.split(","):
        case = Case(
            model_name,
            options.layers,
            options.hidden,
            options.batch,
            options.sequence,
            options.vocabulary,
        )
        model, batch = case.build()
        for name in options.strategies.split(","):
            asked = STRATEGIES[name]
            choices = pt.Options(
                hardware=hardware,
                pins=asked.pins(model),
                recompute=asked.again(model),
            )
            mesh = pt.Mesh(tp=options.ranks)
            plan = pt.plan(model, mesh=mesh, options=choices, **batch)
            yield Planned(f"{model_name} {name}", asdict(case), plan)
