"""Pins of the ways to hold parameters: in pieces for the optimizer, or all the time."""

from __future__ import annotations

from tests.models.zoo import Built, tensor_parallel_pins


def storage_pins(built: Built, kind: str, ndim: int) -> dict[str, str]:
    """Return pins by name; every input's batch is split over all axes.

    ``tensor parallel zero1`` splits the layers over the last axis, and what each rank
    updates over the others.
    """
    model, args, kwargs = built
    whole, split = (f"({', '.join([text] * ndim)},)" for text in ("B", "S(0)"))
    names = list(kwargs) if kwargs else ["x", "target"][: len(args)]
    ways = {
        "zero1": f"storage={whole}; gradient={whole}; optimizer={split}; use={whole}",
        "zero2": f"storage={whole}; gradient={split}; optimizer={split}; use={whole}",
        "zero3": f"storage={split}; use={whole}",
    }
    if kind in ways:
        pins = {name: ways[kind] for name, _ in model.named_parameters()}
        return pins | dict.fromkeys(names, split)
    own = tensor_parallel_pins(model, ndim)
    first = ", ".join(["S(0)"] + ["B"] * (ndim - 1))
    pins = {
        name: f"storage={pin}; optimizer={pin.replace('(B', '(S(0)', 1)}"
        for name, pin in own.items()
    }
    return pins | dict.fromkeys(names, f"({first},)")
