"""What came of a verification, and how it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.compiler.plan.notebook import html_block
from partita.compiler.plan.table import Table


@dataclass(frozen=True)
class Report:
    """What came of a verification.

    Attributes:
        ok: whether every tensor agrees in both precisions.
        max_error: the largest of ``errors``.
        errors: loss, gradients by parameter name, ``output:`` and ``buffer:`` names ->
            relative error in double precision.
        own_errors: the same in the model's own precision.
        tolerances: what each of ``own_errors`` may be.
        failure: why the plan could not be carried out at all, "" where it was.
        divergence: where the ranks first compute something else than the model, or
            that it makes what nothing equals; "" where they do not, and it does not.
    """

    ok: bool
    max_error: float
    errors: Mapping[str, float]
    own_errors: Mapping[str, float]
    tolerances: Mapping[str, float]
    failure: str = ""
    divergence: str = ""

    @classmethod
    def of_failure(cls, error: Exception) -> Report:
        """Return the report of a plan that cannot be carried out."""
        reason = f"{type(error).__name__}: {error}".splitlines()
        return cls(False, float("inf"), {}, {}, {}, reason[0])

    def __str__(self) -> str:
        lines = [
            self._outcome,
            *(f"  {self.errors[name]:.2e}  {name}" for name in self._worst),
            *(
                f"  {self.own_errors[name]:.2e}  {name} in its own precision"
                for name in self._off
            ),
            *([self.divergence] if self.divergence else ()),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        rows = [
            (
                name,
                f"{self.errors[name]:.2e}",
                f"{self.own_errors[name]:.2e}",
                f"{self.tolerances[name]:.2e}",
            )
            for name in dict.fromkeys((*self._worst, *self._off))
        ]
        head = ("tensor", "error in double precision", "in its own", "may be")
        return html_block(
            self._outcome, self.divergence.splitlines(), [Table(head, rows)]
        )

    @property
    def _outcome(self) -> str:
        if self.failure:
            return f"verify: FAILED: {self.failure}"
        return (
            f"verify: {'ok' if self.ok else 'FAILED'}: {len(self.errors)} tensors, "
            f"largest error {self.max_error:.2e} in double precision, "
            f"{max(self.own_errors.values(), default=0.0):.2e} in the model's own"
        )

    @property
    def _worst(self) -> list[str]:
        """The tensors that are furthest off."""
        return sorted(self.errors, key=lambda name: -self.errors[name])[:5]

    @property
    def _off(self) -> list[str]:
        """The first of those that are too far off in the model's own precision."""
        own = self.own_errors.items()
        return [name for name, e in own if not e <= self.tolerances[name]][:5]
