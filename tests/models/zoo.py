"""Small models of many architectures, untouched, with inputs that they are called with.

Random weights, dropout off; each function returns ``(model, args, kwargs)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

VOCABULARY = 96
BATCH, SEQUENCE, HIDDEN = 4, 16, 64

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2 * SEQUENCE,
}


_LABELS: dict[str, Any] = {"num_labels": 8}


@cache
def published() -> Any:
    """Return transformers, which ranks that train other models need not load."""
    import transformers

    # Its configs warn about the special tokens of the published vocabularies.
    transformers.logging.set_verbosity_error()
    return transformers


def _language_model(kind: type[nn.Module], config: Any) -> Built:
    torch.manual_seed(0)
    model = kind(config)
    ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    labels = ids.clone()
    labels[:, :3] = -100  # some tokens count nothing
    return model, (), {"input_ids": ids, "labels": labels}


def gpt2(layers: int = 2) -> Built:
    """Return transformers' GPT-2: tied embeddings, one fused q|k|v matrix."""
    config = published().GPT2Config(
        n_layer=layers,
        n_embd=HIDDEN,
        n_head=4,
        vocab_size=VOCABULARY,
        n_positions=2 * SEQUENCE,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _language_model(published().GPT2LMHeadModel, config)


def llama(layers: int = 2) -> Built:
    """Return Llama: grouped key heads, rotary positions, gated MLP."""
    config = published().LlamaConfig(
        **_SIZES,
        num_hidden_layers=layers,
        intermediate_size=128,
        num_key_value_heads=2,
    )
    return _language_model(published().LlamaForCausalLM, config)


def qwen3(layers: int = 2) -> Built:
    """Return Qwen3: like Llama, with norms of the queries and keys of a head."""
    config = published().Qwen3Config(
        **_SIZES,
        num_hidden_layers=layers,
        intermediate_size=128,
        num_key_value_heads=2,
        head_dim=HIDDEN // 4,
    )
    return _language_model(published().Qwen3ForCausalLM, config)


def bert(layers: int = 2) -> Built:
    """Return BERT with its language-model head, tied."""
    config = published().BertConfig(
        **_SIZES,
        num_hidden_layers=layers,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return _language_model(published().BertForMaskedLM, config)


def opt() -> Built:
    """Return OPT: positions from a cumulative sum over the mask."""
    config = published().OPTConfig(
        **_SIZES,
        num_hidden_layers=2,
        ffn_dim=128,
        word_embed_proj_dim=HIDDEN,
        dropout=0.0,
    )
    return _language_model(published().OPTForCausalLM, config)


def _images() -> dict[str, torch.Tensor]:
    pixels = torch.randn(BATCH, 3, 32, 32)
    return {"pixel_values": pixels, "labels": torch.randint(0, 8, (BATCH,))}


def vit() -> Built:
    """Return ViT: patches by convolution, a class token of its own."""
    torch.manual_seed(0)
    config = published().ViTConfig(
        num_hidden_layers=2,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        **_LABELS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return published().ViTForImageClassification(config), (), _images()


def resnet() -> Built:
    """Return ResNet: convolutions, batch norms with running statistics, pooling."""
    torch.manual_seed(0)
    config = published().ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[2, 2],
        layer_type="basic",
        **_LABELS,
    )
    return published().ResNetForImageClassification(config), (), _images()


class Perceptron(nn.Module):
    """Two layers and a squared error."""

    def __init__(self, width: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error of ``x`` ``[batch, width]``."""
        return (self.down(nn.functional.gelu(self.up(x))) - target).square().mean()


def mlp() -> Built:
    """Return a plain MLP, called with positional inputs."""
    torch.manual_seed(0)
    return Perceptron(), (torch.randn(8, 32), torch.randn(8, 32)), {}


class Encoder(nn.Module):
    """torch's own transformer encoder: q, k and v in one matrix, by a reshape."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            HIDDEN, 4, 128, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error of ``x`` ``[batch, sequence, hidden]``."""
        return nn.functional.mse_loss(self.encoder(x), target)


def encoder() -> Built:
    """Return ``nn.TransformerEncoder`` with a loss."""
    torch.manual_seed(0)
    shape = (BATCH, SEQUENCE, HIDDEN)
    return Encoder(), (torch.randn(shape), torch.randn(shape)), {}


ZOO: dict[str, Callable[[], Built]] = {
    "mlp": mlp,
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "vit": vit,
    "opt": opt,
    "resnet": resnet,
    "encoder": encoder,
}

# Weights that tensor parallelism splits by columns (their outputs) and by rows (what
# they contract), by the end of the module's name.
COLUMNS = (
    "up",
    "c_attn",
    "c_fc",
    "q_proj",
    "k_proj",
    "v_proj",
    "gate_proj",
    "up_proj",
    "fc1",
    "query",
    "key",
    "value",
    "intermediate.dense",
    "linear1",
    "in_proj_",
    "layer.0.convolution",
)
ROWS = (
    "down",
    "c_proj",
    "o_proj",
    "down_proj",
    "out_proj",
    "fc2",
    "output.dense",
    "linear2",
    "layer.1.convolution",
)
_FUSED = ("c_attn", "in_proj_")


def _matches(name: str, ends: tuple[str, ...]) -> str | None:
    module = name.rpartition(".")[0]
    for end in ends:
        if module.endswith(end) or (end.endswith("_") and f".{end}" in name):
            return end
    return None


def tensor_parallel_pins(model: nn.Module, mesh_ndim: int) -> dict[str, str]:
    """Return pins that split columns, then rows, over the last mesh axis."""
    pins: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        is_bias = parameter.ndim == 1
        stored_transposed = "c_" in name  # transformers' Conv1D keeps [in, out]
        out = 0 if is_bias or not stored_transposed else 1
        column, row = _matches(name, COLUMNS), _matches(name, ROWS)
        if column is not None:
            size = parameter.shape[out]
            segments = f"; {size // 3}|{size // 3}|{size // 3}"
            fused = segments if column in _FUSED else ""
            own = f"S({out}{fused})"
        elif row is not None and not is_bias:
            own = f"S({1 - out})"
        else:
            own = "B"
        pins[name] = f"({', '.join(['B'] * (mesh_ndim - 1) + [own])},)"
    return pins


def data_parallel_pins(built: Built, mesh_ndim: int) -> dict[str, str]:
    """Return pins that keep parameters whole and split every input's batch."""
    model, args, kwargs = built
    whole = f"({', '.join(['B'] * mesh_ndim)},)"
    split = f"({', '.join(['S(0)'] * mesh_ndim)},)"
    pins = {name: f"{whole} use={whole}" for name, _ in model.named_parameters()}
    names = list(kwargs) if kwargs else ["x", "target"][: len(args)]
    return pins | dict.fromkeys(names, split)


def sharded_pins(model: nn.Module, mesh_ndim: int) -> dict[str, str]:
    """Return pins that store every parameter in pieces of its first dim."""
    split = f"({', '.join(['S(0)'] * mesh_ndim)},)"
    return {n: split for n, p in model.named_parameters() if p.ndim > 0}
