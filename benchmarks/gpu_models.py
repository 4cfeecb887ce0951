"""Models of the sizes that people train on one GPU, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from training_models import Batch

Named = Callable[[int], Batch]


@dataclass(frozen=True)
class Sized:
    """A model, and its batch of so many rows."""

    build: Callable[[], nn.Module]
    rows: int
    batch: Named

    def built(self, dtype: torch.dtype) -> tuple[nn.Module, Batch]:
        """Return the model in a dtype, and a batch of that dtype where it has one."""
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = self.build().to(dtype).train()
            batch = self.batch(self.rows)
        floats = {key: t.to(dtype) for key, t in batch.items() if t.is_floating_point()}
        return model, {**batch, **floats}


def _tokens(length: int, vocabulary: int) -> Named:
    """Return what makes rows of token ids, which are their own labels."""

    def batch(rows: int) -> Batch:
        ids = torch.randint(0, vocabulary, (rows, length))
        return {"input_ids": ids, "labels": ids.clone()}

    return batch


def _images(rows: int) -> Batch:
    pixels = torch.randn(rows, 3, 224, 224)
    return {"pixel_values": pixels, "labels": torch.randint(0, 1000, (rows,))}


def _of(name: str, task: str, **figures: Any) -> Callable[[], nn.Module]:
    """Return what builds a model of transformers, with dropout off."""

    def build() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(**figures)
        return getattr(transformers, f"AutoModelFor{task}").from_config(config)

    return build


_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def _gpt2(layers: int, width: int, heads: int, words: int) -> Callable[[], nn.Module]:
    return _of(
        "GPT2",
        "CausalLM",
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=words,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


_LLAMA_1B = _of(
    "Llama",
    "CausalLM",
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    tie_word_embeddings=True,
)

_BERT_LARGE = _of("Bert", "MaskedLM", **_LARGE)

_VIT_LARGE = _of("ViT", "ImageClassification", num_labels=1000, **_LARGE)

_T5_BASE = _of(
    "T5",
    "Seq2SeqLM",
    d_model=768,
    d_ff=3072,
    num_layers=12,
    num_heads=12,
    dropout_rate=0.0,
    decoder_start_token_id=0,
)

_MIXTRAL = _of(
    "Mixtral",
    "CausalLM",
    hidden_size=1024,
    intermediate_size=3584,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    use_cache=False,
)

MODELS = {
    "gpt2-medium": Sized(_gpt2(24, 1024, 16, 50257), 8, _tokens(1024, 50257)),
    "llama-1b": Sized(_LLAMA_1B, 4, _tokens(2048, 128256)),
    "bert-large": Sized(_BERT_LARGE, 32, _tokens(512, 30522)),
    "vit-large": Sized(_VIT_LARGE, 64, _images),
    "t5-base": Sized(_T5_BASE, 16, _tokens(512, 32128)),
    "resnet-50": Sized(
        _of("ResNet", "ImageClassification", num_labels=1000), 128, _images
    ),
    "mixtral": Sized(_MIXTRAL, 4, _tokens(1024, 32000)),
    "gpt2-tiny": Sized(_gpt2(4, 128, 4, 1024), 8, _tokens(128, 1024)),
}
