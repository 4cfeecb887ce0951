"""Partita: an unmodified PyTorch model becomes a parallel training program.

>>> import partita as pt
>>> pt.Mesh(dp=2, tp=2).size
4
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

for _part in ("compiler", "passes", "runtime"):
    if not Path(__file__).with_name(_part).is_dir():
        raise ImportError(
            f"src/partita/{_part} should be a link to ../../{_part}, but the link is "
            "lost (unpacked or copied without symlinks?). Clone with git, or run: "
            f"ln -sfn ../../{_part} src/partita/{_part}"
        )

if TYPE_CHECKING:
    from partita.api import compile, parallelize
    from partita.compiler.errors import PartitaError
    from partita.compiler.hardware.profile import Hardware, load_hardware
    from partita.compiler.ir.mesh import Mesh
    from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Split
    from partita.compiler.plan.plan import Plan
    from partita.compiler.rules.rule import Rule, RuleSet
    from partita.compiler.rules.table import default_rules
    from partita.options import Options
    from partita.planning import plan
    from partita.plots.plot import plot
    from partita.runtime.loss_scaler import LossScaler
    from partita.verifying.report import Report
    from partita.verifying.verification import verify
    from partita.version import __version__

_FROM = {
    "Broadcast": "compiler.ir.sbp",
    "Hardware": "compiler.hardware.profile",
    "LossScaler": "runtime.loss_scaler",
    "Mesh": "compiler.ir.mesh",
    "Options": "options",
    "Partial": "compiler.ir.sbp",
    "PartitaError": "compiler.errors",
    "Placement": "compiler.ir.sbp",
    "Plan": "compiler.plan.plan",
    "Report": "verifying.report",
    "Rule": "compiler.rules.rule",
    "RuleSet": "compiler.rules.rule",
    "Split": "compiler.ir.sbp",
    "__version__": "version",
    "compile": "api",
    "default_rules": "compiler.rules.table",
    "load_hardware": "compiler.hardware.profile",
    "parallelize": "api",
    "plan": "planning",
    "plot": "plots.plot",
    "verify": "verifying.verification",
}
"""Where the public names are. Each is looked up when it is first asked for, so that a
rank that runs a plan neither loads nor holds what plans are searched with."""


def __getattr__(name: str) -> object:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM})


__all__ = [
    "Broadcast",
    "Hardware",
    "LossScaler",
    "Mesh",
    "Options",
    "Partial",
    "PartitaError",
    "Placement",
    "Plan",
    "Report",
    "Rule",
    "RuleSet",
    "Split",
    "__version__",
    "compile",
    "default_rules",
    "load_hardware",
    "parallelize",
    "plan",
    "plot",
    "verify",
]
