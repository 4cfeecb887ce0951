"""What a rank holds at most, of what its stages and their system need."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.part import Part
from benchmarks.fidelity.recorded import recorded_bytes


def stage_bytes(parts: Sequence[Part], stage: int, live: int, layout: Layout) -> int:
    """Return the most bytes that a stage takes of a device.

    Copies that ZeRO gathers when nothing is left of the activations lie in what these
    took, which an allocator gives back first. Where tensors of messages were recorded
    in between, that is in pieces, and each of the copies is larger.

    Args:
        parts: of the stage.
        stage: its number.
        live: the most microbatches that are between their forward and their backward.
        layout: of which it is one.
    """
    sizes = layout.layers_of_stages
    copies = sum(_copies_bytes(layout, part) for part in parts)
    activations = live * sum(part.saved_bytes for part in parts)
    activations += max(part.more_bytes for part in parts)
    recorded = 0
    if stage == len(sizes) - 1:
        items = [part.items for part in parts]
        recorded = recorded_bytes(items, sizes[stage], layout)
    is_whole = layout.system.queued and layout.zero and layout.tp == 1
    return (
        sum(part.state_bytes for part in parts)
        + (max(activations, copies) if is_whole else activations + copies)
        + recorded
    )


def groups_bytes(layout: Layout) -> int:
    """Return what NCCL takes for the groups of a rank, besides the largest."""
    pair, larger = layout.system.group_bytes
    return sum(larger if size > 2 else pair for size in layout.group_sizes[:-1])


def _copies_bytes(layout: Layout, part: Part) -> int:
    """Return what an allocator holds more where gradients and pieces are copies.

    Gradients in 16 bits are all there until a backward is through, besides DDP's
    buckets. With ZeRO pieces are gathered into two copies of all parameters and one of
    the rank's piece. On the other hand the moments, made after the first backward, lie
    in what that has freed, and pieces of parameters and gradients are parts of the
    whole, where a plan has tensors of their own.
    """
    if not layout.system.gathers_copies or layout.dp == 1:
        return 0
    if not layout.zero:  # a plan has one copy of gradients in 16 bits, too
        return part.parameter_bytes
    whole = part.parameter_bytes * layout.dp // (layout.dp + 1)  # in 16 bits
    copies, moments, pieces = 3 * layout.dp + 1, 4, 2
    return whole * (copies - moments - pieces) // layout.dp
