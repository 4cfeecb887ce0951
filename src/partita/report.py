"""What came of a verification, and how it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
        divergence: where the ranks first compute something else than the model, ""
            where they do not.
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
        if self.failure:
            return f"verify: FAILED: {self.failure}"
        worst = sorted(self.errors, key=lambda name: -self.errors[name])[:5]
        off = [n for n, e in self.own_errors.items() if not e <= self.tolerances[n]]
        lines = [
            f"verify: {'ok' if self.ok else 'FAILED'}: {len(self.errors)} tensors, "
            f"largest error {self.max_error:.2e} in double precision, "
            f"{max(self.own_errors.values(), default=0.0):.2e} in the model's own",
            *(f"  {self.errors[name]:.2e}  {name}" for name in worst),
            *(f"  {self.own_errors[n]:.2e}  {n} in its own precision" for n in off[:5]),
            *([self.divergence] if self.divergence else ()),
        ]
        return "\n".join(lines)
