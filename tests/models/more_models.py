"""More architectures, with dropout on wherever they have it; see ``zoo.py``.

transformers' models at a small size, and a U-Net, a recommender and torch's own
encoder-decoder, written as people write them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.models.zoo import BATCH, SEQUENCE, VOCABULARY, Built, published
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, CLASSES = 48, 4, 2, 8
DROP = 0.1

_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 2 * SEQUENCE,
}
_DECODER: dict[str, Any] = {
    **_TEXT,
    "intermediate_size": 2 * WIDTH,
    "num_key_value_heads": 2,
    "attention_dropout": DROP,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER: dict[str, Any] = {
    **_TEXT,
    "intermediate_size": 2 * WIDTH,
    "hidden_dropout_prob": DROP,
    "attention_probs_dropout_prob": DROP,
}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "dropout": DROP,
    "attention_dropout": DROP,
    "activation_dropout": DROP,
}
_IMAGE: dict[str, Any] = {"num_labels": CLASSES, "image_size": 32}


def _ids() -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, SEQUENCE))


def _language(model: Any, config: Any, **sizes: Any) -> Built:
    """Return a model that predicts tokens, some of which count nothing."""
    torch.manual_seed(0)
    built = model(config(**sizes))
    ids = _ids()
    labels = ids.clone()
    labels[:, :3] = -100
    return built, (), {"input_ids": ids, "labels": labels}


def _images(model: Any, config: Any, **sizes: Any) -> Built:
    """Return a model that classifies images."""
    torch.manual_seed(0)
    built = model(config(**sizes))
    pixels = torch.randn(BATCH, 3, sizes.get("image_size", 32), 32)
    labels = torch.randint(0, CLASSES, (BATCH,))
    return built, (), {"pixel_values": pixels, "labels": labels}


def whisper() -> Built:
    """Return Whisper: convolutions over a spectrogram, then an encoder-decoder."""
    torch.manual_seed(0)
    config = published().WhisperConfig(
        **_SEQ2SEQ,
        num_mel_bins=16,
        max_source_positions=SEQUENCE,
        max_target_positions=SEQUENCE,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = published().WhisperForConditionalGeneration(config)
    features = torch.randn(BATCH, 16, 2 * SEQUENCE)
    return model, (), {"input_features": features, "labels": _ids()}


def clip() -> Built:
    """Return CLIP: a text and an image encoder, and a contrastive loss."""
    torch.manual_seed(0)
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "attention_dropout": DROP,
    }
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": SEQUENCE}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = published().CLIPConfig(
        text_config={**tower, **text, **tokens},
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=WIDTH,
    )
    pixels = torch.randn(BATCH, 3, 32, 32)
    inputs = {"input_ids": _ids(), "pixel_values": pixels, "return_loss": True}
    return published().CLIPModel(config), (), inputs


class _Block(nn.Module):
    """Two convolutions with group norms around a residual."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, outputs)
        self.drop = nn.Dropout(DROP)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(self.drop(F.silu(self.norm2(y))))
        return y + (x if self.skip is None else self.skip(x))


class UNet(nn.Module):
    """Down by strided convolutions, up by nearest neighbours, skips in between."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.down1 = _Block(channels, channels)
        self.half1 = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.down2 = _Block(2 * channels, 2 * channels)
        self.half2 = nn.MaxPool2d(2)
        self.middle = _Block(2 * channels, 4 * channels)
        self.widen = nn.ConvTranspose2d(4 * channels, 2 * channels, 2, stride=2)
        self.up2 = _Block(4 * channels, 2 * channels)
        self.up1 = _Block(3 * channels, channels)
        self.last = nn.Conv2d(channels, 3, 1)

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the squared error of images ``[batch, 3, height, width]``."""
        fine = self.down1(self.first(x))
        coarse = self.down2(self.half1(fine))
        y = self.widen(self.middle(self.half2(coarse)))
        y = self.up2(torch.cat([y, coarse], 1))
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        out = self.last(self.up1(torch.cat([y, fine], 1)))
        return {"loss": F.mse_loss(out, target), "output": out}


def unet() -> Built:
    """Return a U-Net for images."""
    torch.manual_seed(0)
    images = (torch.randn(BATCH, 3, 16, 16), torch.randn(BATCH, 3, 16, 16))
    return UNet(), images, {}


class Recommender(nn.Module):
    """DLRM: tables of categories, an MLP of numbers, products of all pairs.

    Naumov et al., "Deep Learning Recommendation Model for Personalization and
    Recommendation Systems", arXiv:1906.00091, figure 1.
    """

    def __init__(self, rows: tuple[int, ...] = (64, 32, 16), width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in rows)
        self.bag = nn.EmbeddingBag(24, width, mode="sum")
        self.bottom = nn.Sequential(
            nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU()
        )
        count = len(rows) + 2
        self.top = nn.Sequential(
            nn.Linear(width + count * (count - 1) // 2, 32),
            nn.ReLU(),
            nn.Dropout(DROP),
            nn.Linear(32, 1),
        )

    def forward(
        self, numbers: Tensor, categories: Tensor, history: Tensor, clicked: Tensor
    ) -> Tensor:
        """Return the cross entropy of ``clicked`` ``[batch]``."""
        x = self.bottom(numbers)
        found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([x, *found, self.bag(history)], 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))
        row, column = torch.tril_indices(stacked.shape[1], stacked.shape[1], -1)
        logits = self.top(torch.cat([x, pairs[:, row, column]], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, clicked)


def dlrm() -> Built:
    """Return a recommender with three tables and a bag of past items."""
    torch.manual_seed(0)
    categories = torch.stack([torch.randint(0, n, (8,)) for n in (64, 32, 16)], 1)
    history = torch.randint(0, 24, (8, 4))
    clicked = torch.randint(0, 2, (8,)).float()
    return Recommender(), (torch.randn(8, 8), categories, history, clicked), {}


class Translator(nn.Module):
    """torch's own encoder-decoder between embeddings and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(SEQUENCE, WIDTH))
        self.transformer = nn.Transformer(
            *(WIDTH, HEADS, 1, 1, 2 * WIDTH, DROP), batch_first=True
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of the next token of ``target``."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1] - 1)
        given = target[:, :-1]
        out = self.transformer(
            self.words(source) + self.positions,
            self.words(given) + self.positions[:-1],
            tgt_mask=mask,
            tgt_is_causal=True,
        )
        return F.cross_entropy(self.head(out).flatten(0, 1), target[:, 1:].flatten())


def transformer() -> Built:
    """Return ``nn.Transformer`` as a translator."""
    torch.manual_seed(0)
    return Translator(), (_ids(), _ids()), {}


def _named(name: str, head: str, **sizes: Any) -> Callable[[], Built]:
    def make() -> Built:
        model = getattr(published(), f"{name}{head}")
        built = _images if "Image" in head else _language
        return built(model, model.config_class, **sizes)

    return make


_QWEN3 = {"head_dim": 16}
_GEMMA = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_DROPS = {"hidden_dropout": DROP, "attention_dropout": DROP}

MORE: dict[str, Callable[[], Built]] = {
    "unet": unet,
    "dlrm": dlrm,
    "transformer": transformer,
    "gpt2": _named(
        "GPT2",
        "LMHeadModel",
        n_layer=LAYERS,
        n_embd=WIDTH,
        n_head=HEADS,
        vocab_size=VOCABULARY,
        n_positions=2 * SEQUENCE,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "llama": _named("Llama", "ForCausalLM", **_DECODER),
    "qwen2": _named("Qwen2", "ForCausalLM", **_DECODER),
    "qwen3": _named("Qwen3", "ForCausalLM", **_DECODER, **_QWEN3),
    "gemma3": _named("Gemma3", "ForCausalLM", **_DECODER, **_GEMMA),
    "phi3": _named(
        "Phi3", "ForCausalLM", **_DECODER, embd_pdrop=DROP, resid_pdrop=DROP
    ),
    "mixtral": _named("Mixtral", "ForCausalLM", **_DECODER, **_EXPERTS),
    "opt": _named(
        "OPT",
        "ForCausalLM",
        **_TEXT,
        ffn_dim=2 * WIDTH,
        word_embed_proj_dim=WIDTH,
        dropout=DROP,
        attention_dropout=DROP,
    ),
    "bloom": _named(
        "Bloom",
        "ForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        **_DROPS,
    ),
    "gpt_neox": _named(
        "GPTNeoX", "ForCausalLM", **_TEXT, **_DROPS, intermediate_size=2 * WIDTH
    ),
    "falcon": _named("Falcon", "ForCausalLM", **_TEXT, **_DROPS),
    "mamba": _named(
        "Mamba",
        "ForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        state_size=8,
        use_mambapy=True,
    ),
    "bert": _named("Bert", "ForMaskedLM", **_ENCODER),
    "roberta": _named("Roberta", "ForMaskedLM", **_ENCODER),
    "deberta": _named(
        "DebertaV2",
        "ForMaskedLM",
        **_ENCODER,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
    ),
    "t5": _named(
        "T5",
        "ForConditionalGeneration",
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=12,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=DROP,
        decoder_start_token_id=0,
    ),
    "bart": _named(
        "Bart",
        "ForConditionalGeneration",
        **_SEQ2SEQ,
        max_position_embeddings=2 * SEQUENCE,
    ),
    "whisper": whisper,
    "vit": _named(
        "ViT",
        "ForImageClassification",
        **_IMAGE,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        patch_size=8,
        hidden_dropout_prob=DROP,
        attention_probs_dropout_prob=DROP,
    ),
    "swin": _named(
        "Swin",
        "ForImageClassification",
        **_IMAGE,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        hidden_dropout_prob=DROP,
        attention_probs_dropout_prob=DROP,
    ),
    "convnext": _named(
        "ConvNext",
        "ForImageClassification",
        **_IMAGE,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_stages=2,
        drop_path_rate=DROP,
    ),
    "resnet": _named(
        "ResNet",
        "ForImageClassification",
        num_labels=CLASSES,
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="bottleneck",
    ),
    "clip": clip,
}
