"""A mask that no input decides is said in a word where attention has one for it.

Before   attention(q, k, v, mask, causal=False)     mask = keys' positions <= queries'
After    attention(q, k, v, None, causal=True)

Models say ``is_causal`` when they run, and many write the mask out, position by
position, while they are traced. Kernels do half of the work where they are told, and
flash attention on GPUs takes no mask. So a mask that is computed from constants alone
is computed here, to see whether it lets all attend to all, or each position to those
before it and to itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from partita.compiler.capture import attention as attention  # defines the ops
from partita.compiler.capture.excerpt import Excerpt, TooLarge
from partita.compiler.ir.program import Program, type_of, value_of

ops = torch.ops.partita

Sizes = tuple[int, int]

_PLACES = {  # of the mask, and of whether it is causal, among the arguments
    ops.attention.default: (3, 4),
    ops.attention_backward.default: (4, 7),
}


def name_known_masks(program: Program) -> None:
    """Write ``causal``, or nothing, in place of masks that say no more, in place."""
    masks = _Masks(program)
    for node in program.graph.nodes:
        if node.target in _PLACES:
            mask_at, causal_at = _PLACES[node.target]
            args = list(node.args)
            query, key = (type_of(value_of(args[mask_at - n])) for n in (3, 2))
            sizes = query.shape[-2], key.shape[-2]
            args[mask_at], args[causal_at] = masks.named(
                args[mask_at], args[causal_at], sizes
            )
            node.args = tuple(args)
    program.graph.eliminate_dead_code()


@dataclass
class _Masks:
    """What the masks of a program say; what computes the same is computed once."""

    program: Program
    known: dict[str, Tensor | None] = field(default_factory=dict[str, Tensor | None])
    of_node: dict[fx.Node, Tensor | None] = field(
        default_factory=dict[fx.Node, Tensor | None]
    )
    said: dict[tuple[int, bool, Sizes], tuple[bool, bool]] = field(
        default_factory=dict[tuple[int, bool, Sizes], tuple[bool, bool]]
    )

    def named(
        self, mask: fx.Node | None, is_causal: bool, sizes: Sizes
    ) -> tuple[fx.Node | None, bool]:
        """Return the mask that has to be given, and whether attention is causal.

        ``sizes`` are how many queries there are, and how many keys.
        """
        attends = None if mask is None else self._attends(mask)
        if attends is None:
            return mask, is_causal
        # What masks say is kept, so ids stay theirs.
        key = id(attends), is_causal, sizes
        if key not in self.said:
            self.said[key] = _said(attends, is_causal, sizes)
        is_needed, is_causal = self.said[key]
        return mask if is_needed else None, is_causal

    def _attends(self, mask: fx.Node) -> Tensor | None:
        """Return which queries (rows) attend to which keys, if that is all there is.

        One of all samples and heads between which it does not differ.
        """
        if mask not in self.of_node:
            self.of_node[mask] = self._found(mask)
        return self.of_node[mask]

    def _found(self, mask: fx.Node) -> Tensor | None:
        excerpt = Excerpt.of(self.program, mask)
        if excerpt is None:
            return None
        key = excerpt.key
        if key not in self.known:
            self.known[key] = _attends(excerpt)
        return self.known[key]


def _said(attends: Tensor, is_causal: bool, sizes: Sizes) -> tuple[bool, bool]:
    """Return whether a mask has to be given, and whether attention is causal."""
    # Equal in all samples and heads, or else it is neither of both.
    if any(size > 1 for size in attends.shape[:-2]):
        return True, is_causal
    attends = attends.reshape(attends.shape[-2:]).expand(sizes)
    earlier = torch.ones_like(attends).tril()
    if is_causal:
        attends = attends & earlier
    if bool(attends.all()):
        return False, False
    return (False, True) if torch.equal(attends, earlier) else (True, is_causal)


def _attends(excerpt: Excerpt) -> Tensor | None:
    try:
        value = excerpt()
    except TooLarge:
        return None
    if value.ndim < 2:
        return None
    for dim in range(value.ndim - 2):
        if value.stride(dim) == 0:
            value = value.narrow(dim, 0, 1)
    if value.dtype == torch.bool:
        return value
    shut = (value == -torch.inf) | (value == torch.finfo(value.dtype).min)
    return ~shut if bool((shut | (value == 0)).all()) else None
