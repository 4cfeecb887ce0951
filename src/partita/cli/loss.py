"""Find the loss that a model does not return: ``file.py:function``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from partita.cli.named import hint_of, load_module_of
from partita.compiler.capture.scored_model import LossFunction
from partita.compiler.errors import BadOptions
from partita.compiler.plan.document import LossKind
from partita.compiler.plan.plan import Plan


def add_loss(parser: argparse.ArgumentParser) -> None:
    """Offer a loss of what the model returns."""
    parser.add_argument(
        "--loss",
        metavar="LOSS",
        help="of what the model returns, where that is no loss: file.py:function or "
        "package.module:function, e.g. one that returns out.logits.square().mean()",
    )


def load_loss(text: str | None) -> LossFunction | None:
    """Return the function that ``text`` names.

    Raises:
        BadOptions: when there is no such file, module or function.
    """
    if text is None:
        return None
    module, place, name = load_module_of("--loss", text, "function")
    function = getattr(module, name, None)
    if not callable(function):
        hint = hint_of(module, name, Callable)
        problem = "has no function" if function is None else "holds no function, but"
        raise BadOptions(f"--loss {text}: {place} {problem} {name}{hint}")
    return cast("LossFunction", function)


def load_plan(path: str, loss: str | None) -> Plan:
    """Return a saved plan with the loss that ``loss`` names, which no file holds.

    Raises:
        BadPlan: for a file that is no plan.
        BadOptions: for a loss that is not found, or that the plan does not ask for.
    """
    plan = Plan.load(path)
    is_asked = plan.options.loss is LossKind.CALLABLE
    if loss is None and is_asked:
        raise BadOptions(
            f"{path}: the plan is of a loss that its file cannot hold; want --loss "
            "file.py:function, the same again"
        )
    if loss is not None and not is_asked:
        raise BadOptions(
            f"--loss {loss}: {path} is of "
            + ("the model's own loss" if plan.options.train else "no loss")
            + "; want none"
        )
    return replace(plan, loss_function=load_loss(loss))
