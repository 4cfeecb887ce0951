"""Checks that a matrix could be inverted or solved for are ordinary ops of a program.

Such a check returns nothing. Torch keeps effects like it in the order of the code, by a
token that enters and leaves a traced graph; but a check may run whenever what it looks
at is there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from partita.compiler.capture.torch_private import without_order

_CHECK = torch.ops.aten._linalg_check_errors.default


def unordered_checks() -> AbstractContextManager[object]:
    """Return a block in which a trace makes no tokens for checks of matrices."""
    return without_order(_CHECK)
