"""The example inputs: their names, their document, and what the model is called with.

A call's arguments are named after the parameters of ``forward``, so that
``model(ids)`` and ``model(input_ids=ids)`` are one thing; leaves of nested inputs are
named by their path (``batch.images.1``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from partita.compiler.capture.leaf_paths import leaf_paths
from partita.compiler.capture.torch_private import pytree
from partita.compiler.errors import BadBatch, BadPlan, CaptureFailed
from partita.compiler.ir.tensor_type import TensorType

Constant = None | bool | int | float | str


@dataclass(frozen=True)
class InputSpec:
    """The named leaves of one call and the tree that they hang on.

    ``leaves`` maps a name to the type of a tensor or to a constant; ``tree`` is
    torch's own JSON form of the pytree of ``(args, kwargs)``.
    """

    leaves: Mapping[str, TensorType | Constant]
    tree: str

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors among the leaves, in order."""
        return tuple(
            n for n, leaf in self.leaves.items() if isinstance(leaf, TensorType)
        )

    def rebuild(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return ``(args, kwargs)`` with ``tensors`` and the constants in place."""
        leaves = [tensors.get(name, leaf) for name, leaf in self.leaves.items()]
        try:
            spec = pytree.treespec_loads(self.tree)
            args, kwargs = pytree.tree_unflatten(leaves, spec)
        except Exception as error:
            raise BadPlan(f"inputs.tree: no pytree of the inputs ({error})") from error
        return tuple(args), dict(kwargs)

    def example(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Return tensors of the right types, all zeros: enough to capture with."""
        return {
            name: torch.zeros(leaf.shape, dtype=leaf.dtype, device=device)
            for name, leaf in self.leaves.items()
            if isinstance(leaf, TensorType)
        }


def name_leaves(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return every leaf of a call's arguments under its name, in pytree order."""
    return leaf_namer(model)(args, kwargs)


def leaf_namer(
    model: torch.nn.Module,
) -> Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any]]:
    """Return ``name_leaves`` for the calls of a model, which it does not hold.

    The function raises ``BadBatch`` for an input that is given twice.
    """
    names = [
        parameter.name
        for parameter in inspect.signature(model.forward).parameters.values()
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]

    def named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        further = range(len(names), len(args))
        heads = [*names[: len(args)], *(f"args.{at}" for at in further)]
        for name in heads:
            if name in kwargs:
                raise BadBatch(
                    f"batch: input {name!r} is given by position and by name; want it "
                    "once"
                )
        given = (*args, *kwargs.values())
        if all(isinstance(leaf, torch.Tensor) for leaf in given):
            return dict(zip((*heads, *kwargs), given, strict=True))
        leaves: dict[str, Any] = {}
        for path, leaf in leaf_paths((tuple(args), dict(kwargs))):
            side, head, *rest = path
            if side == "0":
                head = heads[int(head)]
            leaves[".".join((head, *rest))] = leaf
        return leaves

    return named


def check_dense(what: str, tensor: torch.Tensor) -> None:
    """Check that a tensor, called ``what``, has all of its elements.

    Raises:
        CaptureFailed: if it is sparse.
    """
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise CaptureFailed(
            f"{what} is {layout}, of which placements have no parts; give its indices "
            "and values, for index_add of what x[indices] has, or its to_dense()"
        )


def describe(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> InputSpec:
    """Return the spec of a call.

    Raises:
        CaptureFailed: naming an argument that is no dense tensor and no constant.
    """
    leaves: dict[str, TensorType | Constant] = {}
    for name, leaf in name_leaves(model, args, kwargs).items():
        if isinstance(leaf, torch.Tensor):
            check_dense(f"input {name!r}", leaf)
            leaves[name] = TensorType(tuple(leaf.shape), leaf.dtype)
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            leaves[name] = leaf
        else:
            raise CaptureFailed(
                f"input {name!r} is a {type(leaf).__name__}; want tensors, numbers, "
                "text, None, and lists, tuples and dicts of them"
            )
    _, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    try:
        return InputSpec(leaves, pytree.treespec_dumps(spec))
    except NotImplementedError as error:
        raise CaptureFailed(
            "the inputs hold a container that has no text form; want lists, tuples and "
            f"dicts ({error})"
        ) from error
