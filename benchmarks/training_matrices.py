"""Which matrices of the timed models Megatron splits, and how.

Source: M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3: the first matrix
of a pair by columns, the second by rows; embeddings and the head by the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from language_models import COLUMNS, ROWS
from torch import nn

_COLUMNS, _ROWS = {*COLUMNS, "inner"}, {*ROWS, "outer"}
_EMBEDDINGS = "wte", "embed_tokens"
_HEAD = "lm_head"


@dataclass(frozen=True)
class Matrices:
    """The names of modules: what is split by columns of x W, by rows, by vocabulary."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    embeddings: tuple[str, ...]
    heads: tuple[str, ...]

    @staticmethod
    def of(model: nn.Module) -> Matrices:
        """Return those of a model; of a sequence of layers every other one."""
        named = {name: name.rpartition(".")[2] for name, _ in model.named_modules()}
        columns = [name for name, last in named.items() if last in _COLUMNS]
        rows = [name for name, last in named.items() if last in _ROWS]
        if not columns:
            linear = (n for n, m in model.named_modules() if isinstance(m, nn.Linear))
            in_turn = [*linear]
            columns, rows = in_turn[::2], in_turn[1::2]
        return Matrices(
            tuple(columns),
            tuple(rows),
            tuple(name for name, last in named.items() if last in _EMBEDDINGS),
            tuple(name for name, last in named.items() if last == _HEAD),
        )


def megatron(model: nn.Module) -> dict[str, str]:
    """Return pins for these placements; what is no such matrix is whole."""
    found = Matrices.of(model)
    pins: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        layer, _, kind = name.rpartition(".")
        is_conv1d = type(model.get_submodule(layer)).__name__ == "Conv1D"
        out = 1 if is_conv1d and parameter.ndim == 2 else 0
        third = parameter.shape[out] // 3
        segments = f"; {third}|{third}|{third}" if layer.endswith("c_attn") else ""
        if layer in found.columns:
            split = f"S({out}{segments})"
        elif layer in found.rows and kind == "weight":
            split = f"S({1 - out})"
        elif layer in (*found.embeddings, *found.heads):
            split = "S(0)"
        else:
            pins[name] = "B"
            continue
        pins[name] = f"{split} use={split}"
    return pins
