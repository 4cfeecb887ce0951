"""Time the search of placements on captured transformers.

    python benchmarks/search_speed.py --models gpt2,llama --meshes 'tp=2 dp=2,tp=4'

Prints, per problem: its size, the CPU time to list every signature of every node, the
time to price all boxings that the search asks for (once per type and pair of
placements) and the time to solve it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import nn

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.build import build_model
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.fold import Fold
from partita.compiler.search.problem import Problem
from partita.compiler.search.solver import solve
from partita.options import Options
from partita.planning import Planner

VOCABULARY = 4096
Built = tuple[nn.Module, dict[str, Any]]


def _tokens() -> dict[str, Any]:
    ids = torch.randint(0, VOCABULARY, (8, 64))
    return {"input_ids": ids, "labels": ids}


def _images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(8, 3, 64, 64), "labels": torch.zeros(8).long()}


def _sizes(layers: int) -> dict[str, Any]:
    return {"num_hidden_layers": layers, "hidden_size": 256, "num_attention_heads": 4}


def gpt2(layers: int) -> Built:
    """Return a GPT-2 and a batch."""
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=256,
        n_head=4,
        vocab_size=VOCABULARY,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config), _tokens()


def llama(layers: int) -> Built:
    """Return a Llama and a batch."""
    config = transformers.LlamaConfig(
        **_sizes(layers), intermediate_size=688, vocab_size=VOCABULARY
    )
    return transformers.LlamaForCausalLM(config), _tokens()


def bert(layers: int) -> Built:
    """Return a BERT and a batch."""
    config = transformers.BertConfig(
        **_sizes(layers),
        intermediate_size=1024,
        vocab_size=VOCABULARY,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config), _tokens()


def vit(layers: int) -> Built:
    """Return a ViT and a batch."""
    config = transformers.ViTConfig(
        **_sizes(layers), intermediate_size=1024, image_size=64, patch_size=8
    )
    return transformers.ViTForImageClassification(config), _images()


def resnet(layers: int) -> Built:
    """Return a ResNet of two stages and a batch."""
    config = transformers.ResNetConfig(
        embedding_size=32,
        hidden_sizes=[64, 128],
        depths=[layers, layers],
        layer_type="basic",
    )
    return transformers.ResNetForImageClassification(config), _images()


MODELS: dict[str, Callable[[int], Built]] = {
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "vit": vit,
    "resnet": resnet,
}


def with_known_prices(problem: Problem) -> Problem:
    """Return the problem with every boxing priced that the search will ask for."""
    known: dict[tuple[TensorType, Placement, Placement], float] = {}

    def ask(type_: TensorType, made: Placement, wanted: Placement) -> float:
        key = (type_, made, wanted)
        if key not in known:
            known[key] = problem.box_seconds(type_, made, wanted)
        return known[key]

    priced = replace(problem, box_seconds=ask)
    build_model(Fold.none(priced))
    return priced


def signatures_s(planner: Planner) -> float:
    """Return the CPU seconds to read every row and list the signatures of all nodes."""
    start = time.process_time()
    hardware = load_hardware(planner.options.hardware)
    program = planner.captured.program.with_mesh(planner.mesh)
    candidates = Candidates(program, planner.options.rules, planner.mesh, hardware)
    for node in program.calls():
        candidates.of_call(node)
    return time.process_time() - start


def main() -> None:
    """Print one line per model, mesh and profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--meshes", default="tp=2 dp=2,tp=2 dp=2,tp=4")
    parser.add_argument("--hardware", default="cpu-gloo,h100-dgx")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    print(
        f"{'problem':28} nodes choices most signatures pricing solving plan, status, "
        "gap, solver"
    )
    for name in asked.models.split(","):
        model, batch = MODELS[name](asked.layers)
        for mesh in asked.meshes.split():
            for hardware in asked.hardware.split(","):
                options = Options(hardware=hardware)
                planner = Planner.of(model, (), batch, Mesh.parse(mesh), options)
                listing_s = signatures_s(planner)
                start = time.perf_counter()
                problem = with_known_prices(planner.posed.problem)
                pricing_s = time.perf_counter() - start
                solution = solve(problem, asked.limit)
                counts = [len(node.choices) for node in problem.nodes]
                print(
                    f"{f'{name} {mesh} {hardware}':28} {len(counts):5} {sum(counts):7}"
                    f" {max(counts):4} {listing_s:8.2f} s {pricing_s:5.1f} s"
                    f" {solution.wall_s:5.2f} s"
                    f" {solution.seconds * 1e3:.4f} ms, {solution.status},"
                    f" {solution.gap:.1e}, {solution.solver}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
