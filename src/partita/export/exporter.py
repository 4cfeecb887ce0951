"""What an exporter is that needs the model: a format, and what writes programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import RuleSet


@dataclass(frozen=True, slots=True)
class ProgramExporter:
    """One format of what a plan makes of a model; ``write`` returns the file.

    It is given the rules that the plan was made with, too.
    ``is_text`` says whether a person may want to read it where it is printed.
    """

    name: str
    summary: str
    suffix: str
    write: Callable[[torch.nn.Module, Plan, RuleSet], bytes]
    is_text: bool = True
