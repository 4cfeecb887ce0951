"""What an exporter is that needs the model: a format, and what writes programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from partita.compiler.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class ProgramExporter:
    """One format of what a plan makes of a model; ``write`` returns the file.

    ``is_text`` says whether a person may want to read it where it is printed.
    """

    name: str
    summary: str
    suffix: str
    write: Callable[[torch.nn.Module, Plan], bytes]
    is_text: bool = True
