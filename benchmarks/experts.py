"""Compare the plans that the search finds with those that experts write.

    python benchmarks/experts.py --models llama-7b,bert-large --targets h100-dgx@tp=8

For every model and machine: the predicted seconds and memory of the free search, with
the device's memory as its limit, and of data parallelism, ZeRO-3 and Megatron's tensor
parallelism without and with sequence parallelism, each written as pins. What an expert
leaves open the search decides; what does not fit the device is marked with ``!`` and
planned once more with its memory as the limit, so that activations are made again. The
exit status is 1 where an expert's plan fits and is faster than the search's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import nn

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.errors import PartitaError
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import format_bytes, parse_bytes
from partita.compiler.search.parts import Clock
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search
from partita.options import Options
from partita.whole_plans.beside_search import BesideSearch
from partita.whole_plans.light_messages import fastest_together

_ROUNDING = 1e-9  # of sums in another order
TARGETS = (
    "a100-80gb-selene@dp=2,tp=8 h100-dgx@tp=8 h100-dgx@dp=2,tp=4 cpu-gloo@dp=2,tp=2"
)


@dataclass(frozen=True)
class Expert:
    """A model, a batch, and what Megatron's authors would pin of it.

    Attributes:
        build: makes the model and its batch.
        column: patterns of weights whose results are split.
        row: patterns of weights whose operands are split.
        vocabulary: patterns of tables that are split by rows.
        biases: patterns of biases that go with split results.
        residual: patterns of the nodes between which sequences may be split.
        is_transposed: whether weights are stored [in, out].
        segments: of fused projections, by pattern.
        others: how weights that are no matrices are split, by pattern.
        added: patterns of biases that the op of a product adds by itself; how one that
            is held whole goes into a sum is left open.
    """

    build: Callable[[int], tuple[nn.Module, dict[str, Any]]]
    layers: int
    column: tuple[str, ...]
    row: tuple[str, ...]
    vocabulary: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()
    residual: tuple[str, ...] = ()
    is_transposed: bool = False
    segments: Mapping[str, str] = field(default_factory=dict[str, str])
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    added: tuple[str, ...] = ()


def _tokens(batch: int, sequence: int) -> dict[str, Any]:
    ids = torch.zeros(batch, sequence, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def _llama(layers: int, **sizes: Any) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, vocab_size=32000, use_cache=False, **sizes
    )
    return transformers.LlamaForCausalLM(config), _tokens(16, 2048)


def _llama_7b(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    return _llama(layers, hidden_size=4096, intermediate_size=11008)


def _llama_70b(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    return _llama(
        layers,
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
    )


def _mixtral(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.MixtralConfig(num_hidden_layers=layers, use_cache=False)
    return transformers.MixtralForCausalLM(config), _tokens(16, 2048)


def _gpt2_xl(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=1600,
        n_head=25,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config), _tokens(32, 1024)


def _bert_large(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=1024,
        num_attention_heads=16,
        intermediate_size=4096,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config), _tokens(64, 512)


def _vit_huge(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ViTConfig(
        num_hidden_layers=layers,
        hidden_size=1280,
        num_attention_heads=16,
        intermediate_size=5120,
        patch_size=14,
    )
    batch = {"pixel_values": torch.zeros(64, 3, 224, 224)}
    labels = torch.zeros(64, dtype=torch.long)
    return transformers.ViTForImageClassification(config), {**batch, "labels": labels}


_LLAMA = Expert(
    _llama_7b,
    32,
    column=tuple(f"*.{n}_proj.weight" for n in ("q", "k", "v", "gate", "up")),
    row=("*.o_proj.weight", "*.down_proj.weight"),
    vocabulary=("*embed_tokens.weight", "lm_head.weight"),
    residual=("model.layers.[0-9]/add*", "model.layers.[0-9][0-9]/add*"),
)

EXPERTS: dict[str, Expert] = {
    "gpt2-xl": Expert(
        _gpt2_xl,
        48,
        column=("*.c_attn.weight", "*.c_fc.weight"),
        row=("*.c_proj.weight",),
        biases=("*.c_attn.bias", "*.mlp.c_fc.bias"),
        residual=("transformer.h.[0-9]/add*", "transformer.h.[0-9][0-9]/add*"),
        is_transposed=True,
        segments={"*.c_attn.*": "1600|1600|1600"},
        added=("*.c_proj.bias",),
    ),
    "llama-7b": _LLAMA,
    "llama-70b": replace(_LLAMA, build=_llama_70b, layers=80),
    "bert-large": Expert(
        _bert_large,
        24,
        column=(
            *(f"*.self.{name}.weight" for name in ("query", "key", "value")),
            "*.intermediate.dense.weight",
        ),
        row=("*.layer.*.output.dense.weight",),
        biases=(
            *(f"*.self.{name}.bias" for name in ("query", "key", "value")),
            "*.intermediate.dense.bias",
        ),
        residual=("*.output/add*",),
        added=("*.output.dense.bias",),
    ),
    "vit-huge": Expert(
        _vit_huge,
        32,
        column=(
            *(f"*.attention.{name}_proj.weight" for name in ("q", "k", "v")),
            "*.mlp.fc1.weight",
        ),
        row=("*.attention.o_proj.weight", "*.mlp.fc2.weight"),
        biases=(
            *(f"*.attention.{name}_proj.bias" for name in ("q", "k", "v")),
            "*.mlp.fc1.bias",
        ),
        residual=("vit.layers.[0-9]/add*", "vit.layers.[0-9][0-9]/add*"),
        added=("*.attention.o_proj.bias", "*.mlp.fc2.bias"),
    ),
    "mixtral": replace(
        _LLAMA,
        build=_mixtral,
        column=tuple(f"*.{name}_proj.weight" for name in ("q", "k", "v")),
        row=("*.o_proj.weight",),
        others={
            "*.experts.gate_up_proj": "S(1; 14336|14336)",
            "*.experts.down_proj": "S(2)",
        },
    ),
}


@dataclass(frozen=True)
class Strategy:
    """What an expert pins, and what is made again for the backward."""

    pins: Mapping[str, str]
    recompute: tuple[str, ...] = ()


def _everywhere(sharding: str, mesh: Mesh) -> str:
    return f"({', '.join([sharding] * mesh.ndim)},)"


def _innermost(sharding: str, mesh: Mesh, outer: str = "B") -> str:
    return f"({', '.join([*[outer] * (mesh.ndim - 1), sharding])},)"


def _held(placement: str, use: str) -> str:
    return (
        f"storage={placement}; gradient={placement}; optimizer={placement}; use={use}"
    )


def strategies(expert: Expert, mesh: Mesh) -> dict[str, Strategy]:
    """Return what experts would write for a model; ``tp`` is the mesh's last axis."""
    whole, rows = _everywhere("B", mesh), _everywhere("S(0)", mesh)
    split_batch = {"input:*": rows}
    tensor: dict[str, str] = {"input:*": _innermost("B", mesh, "S(0)")}
    tensor["parameter:*"] = _held(whole, whole)
    by_out, by_in = ("S(1", "S(0") if expert.is_transposed else ("S(0", "S(1")
    for patterns, start in (
        (expert.column, by_out),
        (expert.row, by_in),
        (expert.vocabulary, "S(0"),
        (expert.biases, "S(0"),
    ):
        for pattern in patterns:
            segments = [
                f"; {sizes}"
                for fused, sizes in expert.segments.items()
                if pattern.startswith(fused.removesuffix("*"))
            ]
            split = _innermost(f"{start}{''.join(segments)})", mesh)
            tensor[pattern] = _held(split, split)
    for pattern, sharding in expert.others.items():
        split = _innermost(sharding, mesh)
        tensor[pattern] = _held(split, split)
    for pattern in expert.added:
        tensor[pattern] = f"storage={whole}; gradient={whole}; optimizer={whole}"
    found = {
        "data parallel": Strategy({**split_batch, "parameter:*": _held(whole, whole)}),
        "ZeRO-3": Strategy(
            {**split_batch, "parameter:*": _held(rows, whole)}, ("parameter:*",)
        ),
        "Megatron": Strategy(tensor),
    }
    if expert.residual:
        split = _innermost("S(1)", mesh, "S(0)")
        pins = {**tensor, **dict.fromkeys(expert.residual, split)}
        found["Megatron, sequence"] = Strategy(pins)
    return found


def _plan(
    captured: Captured, mesh: Mesh, options: Options
) -> tuple[Plan | None, str, float]:
    """Return a plan, or why there is none, and the CPU seconds that took."""
    started = time.process_time()
    try:
        planner = Planner(captured, "", mesh, options)
        clock = Clock.of(options.time_limit)
        first = BesideSearch(planner, clock).first(Search(planner, clock))
        most = parse_bytes(options.bucket)
        plan, why = fastest_together(planner, first, most, clock), ""
    except PartitaError as error:
        plan, why = None, str(error).splitlines()[0]
    return plan, why, time.process_time() - started


def _is_better(expert: Plan | None, found: Plan | None, limit: int) -> bool:
    """Whether an expert's plan keeps to the limit and is faster than what was found."""
    if expert is None or expert.predicted.bytes > limit:
        return False
    seconds = expert.predicted.seconds * (1 + _ROUNDING)
    return found is None or seconds < found.predicted.seconds


def _line(name: str, plan: Plan | None, why: str, limit: int, took_s: float) -> str:
    if plan is None:
        return f"  {name:22} {why[:110]}"
    mark = "!" if plan.predicted.bytes > limit else " "
    size = format_bytes(plan.predicted.bytes)
    status = f"{plan.search.solver}, {plan.search.status}"
    seconds = f"{plan.predicted.seconds * 1e3:12.4f} ms"
    return f"  {name:22} {seconds} {size:>12}{mark} {took_s:6.1f} s  {status}"


def _compare(
    name: str, expert: Expert, captured: Captured, target: str, time_limit: float
) -> bool:
    """Print the table of a model on a machine; return whether the search is worse."""
    hardware_name, _, axes = target.partition("@")
    hardware, mesh = load_hardware(hardware_name), Mesh.parse(axes)
    limit = hardware.device.memory_bytes
    options = Options(hardware=hardware, time_limit=time_limit)
    plan, why, took_s = _plan(captured, mesh, replace(options, memory=limit))
    print(f"{name} on {target}, {format_bytes(limit)} a rank")
    print(_line("the search", plan, why, limit, took_s), flush=True)
    is_worse = False
    for own, strategy in strategies(expert, mesh).items():
        pinned = replace(options, pins=strategy.pins, recompute=strategy.recompute)
        other, why, took_s = _plan(captured, mesh, pinned)
        line = _line(own, other, why, limit, took_s)
        if other is not None and other.predicted.bytes > limit:
            print(line, flush=True)
            other, why, took_s = _plan(captured, mesh, replace(pinned, memory=limit))
            line = _line("  within the limit", other, why, limit, took_s)
        if _is_better(other, plan, limit):
            is_worse = True
            line += "  THE SEARCH IS WORSE"
        print(line, flush=True)
    return is_worse


def main() -> int:
    """Print a table per model and machine; return 1 where the search is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(EXPERTS))
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--layers", type=int, help="in place of the model's own number")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to search")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    worse: list[str] = []
    for name in asked.models.split(","):
        expert = EXPERTS[name]
        with torch.device("meta"):
            model, batch = expert.build(asked.layers or expert.layers)
        captured = capture(model, (), batch)
        worse += [
            f"{name} on {target}"
            for target in asked.targets.split()
            if _compare(name, expert, captured, target, asked.limit)
        ]
    if worse:
        print(f"the search is worse than an expert for {', '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
