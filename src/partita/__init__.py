"""Partita: an unmodified PyTorch model becomes a parallel training program.

>>> import partita as pt
>>> pt.Mesh(dp=2, tp=2).size
4
"""

from pathlib import Path

for _part in ("compiler", "passes", "runtime"):
    if not Path(__file__).with_name(_part).is_dir():
        raise ImportError(
            f"src/partita/{_part} should be a link to ../../{_part}, but the link is "
            "lost (unpacked or copied without symlinks?). Clone with git, or run: "
            f"ln -sfn ../../{_part} src/partita/{_part}"
        )

# After the check: with a lost link these would fail with a message that says nothing.
from partita.api import compile, parallelize  # noqa: E402
from partita.compiler.errors import PartitaError  # noqa: E402
from partita.compiler.hardware.profile import Hardware, load_hardware  # noqa: E402
from partita.compiler.ir.mesh import Mesh  # noqa: E402
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Split  # noqa: E402
from partita.compiler.plan.plan import Plan  # noqa: E402
from partita.compiler.rules.rule import Rule, RuleSet  # noqa: E402
from partita.compiler.rules.table import default_rules  # noqa: E402
from partita.options import Options  # noqa: E402
from partita.planning import plan  # noqa: E402
from partita.plots.plot import plot  # noqa: E402
from partita.runtime.loss_scaler import LossScaler  # noqa: E402
from partita.verifying.report import Report  # noqa: E402
from partita.verifying.verification import verify  # noqa: E402
from partita.version import __version__  # noqa: E402

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
