"""Attention is told in a word what a mask says that no input decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from partita.compiler.capture.capture import capture
from partita.compiler.ir.mesh import Mesh
from partita.planning import plan
from partita.verifying.verification import verify

SIZE = 6

Mask = Callable[[Tensor], Tensor]


def positions(x: Tensor) -> tuple[Tensor, Tensor]:
    counted = torch.arange(x.shape[1])
    return counted[:, None], counted[None, :]


def causal(x: Tensor) -> Tensor:
    """As many libraries write it: of each sample, by indices."""
    rows, columns = positions(x)
    samples = torch.arange(x.shape[0])[:, None, None, None]
    at = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
    one_sequence = at[samples, rows] - at[samples, 0] >= 0
    return (columns <= rows) & one_sequence


def added(x: Tensor) -> Tensor:
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf)
    return mask.triu_(1).expand(x.shape[0], 1, -1, -1)


def least_added(x: Tensor) -> Tensor:
    rows, columns = positions(x)
    return torch.where(columns <= rows, 0.0, torch.finfo(torch.float32).min)


def everything(x: Tensor) -> Tensor:
    return positions(x)[0] >= 0


def window(x: Tensor) -> Tensor:
    rows, columns = positions(x)
    return (columns <= rows) & (columns > rows - 3)


def by_sample(x: Tensor) -> Tensor:
    rows, columns = positions(x)
    return (columns <= rows) | (torch.arange(x.shape[0]) > 0)[:, None, None, None]


def shifted(x: Tensor) -> Tensor:
    rows, columns = positions(x)
    return torch.where(columns <= rows, 0.0, -1e4)


def first_key(x: Tensor) -> Tensor:
    return positions(x)[1] < 1


def first_query(x: Tensor) -> Tensor:
    return torch.where(positions(x)[0] < 1, 0.0, -torch.inf)


def from_input(x: Tensor) -> Tensor:
    return (x.sum(-1) > -1e9)[:, None, None, :]


class Attending(nn.Module):
    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 24)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (2, 4)).transpose(1, 2)
            for part in self.inner(x).chunk(3, dim=-1)
        )
        mask = self.mask(x)
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.square().mean()


def attentions(model: nn.Module) -> list[fx.Node]:
    captured = capture(model, (torch.zeros(2, SIZE, 8),), {})
    graph = captured.program.graph
    return [node for node in graph.nodes if "attention" in str(node.target)]


@pytest.mark.parametrize(
    ("mask", "is_causal"),
    [(causal, True), (added, True), (least_added, True), (everything, False)],
)
def test_what_has_a_name_is_named(mask: Mask, is_causal: bool) -> None:
    forward, backward = attentions(Attending(mask))
    assert forward.args[3:5] == (None, is_causal)
    assert (backward.args[4], backward.args[7]) == (None, is_causal)
    left = {str(node.target) for node in forward.graph.nodes}
    assert not left & {"aten.le.Tensor", "aten.triu.default", "aten.where.self"}


@pytest.mark.parametrize(
    "mask", [window, by_sample, shifted, first_key, first_query, from_input]
)
def test_what_says_more_stays(mask: Mask) -> None:
    forward, backward = attentions(Attending(mask))
    assert isinstance(forward.args[3], fx.Node)
    assert backward.args[4] is forward.args[3]
    assert forward.args[4] is backward.args[7] is False


@pytest.mark.parametrize("mask", [causal, added, everything, by_sample, first_key])
def test_the_model_computes_the_same(mask: Mask) -> None:
    torch.manual_seed(0)
    model, x = Attending(mask), torch.randn(2, SIZE, 8)
    found = plan(model, x, mesh=Mesh(tp=2))
    report = verify(model, x, plan=found)
    assert report.ok, str(report)


def test_a_mask_too_large_to_look_at_stays() -> None:
    with torch.device("meta"):
        model, x = Attending(causal), torch.zeros(1, 1 << 15, 8)
    captured = capture(model, (x,), {})
    found = captured.program.graph.nodes
    masks = [node.args[3] for node in found if "attention.default" in str(node.target)]
    assert isinstance(masks[0], fx.Node)


def test_capture_does_not_depend_on_the_default_device() -> None:
    with torch.device("meta"):
        model, x = Attending(causal), torch.zeros(2, SIZE, 8)
        within = capture(model, (x,), {})
    assert within.fingerprint == capture(model, (x,), {}).fingerprint


class Layers(nn.Module):
    """Torch's own layers, given a mask and no word about it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        other = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(other, 1)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.decoder(x, self.encoder(x, mask), mask).square().mean()


def test_torchs_own_layers_are_given_a_mask_that_nobody_reads() -> None:
    is_causal = [
        node.args[4]
        for node in attentions(Layers())
        if node.target is torch.ops.partita.attention.default
    ]
    assert is_causal == [True, True, False]
    x = torch.randn(2, SIZE, 8)
    made = plan(Layers(), x, mesh=Mesh(tp=2))
    assert verify(Layers(), x, plan=made).ok
