"""The errors that Partita raises for what its users hand it.

Every message is one line that says what was found, where (the parameter, file,
key or rank) and what would be right. Bugs of Partita itself are ``assert``s and
``InvariantViolation``, which names the pass to blame.
"""


class PartitaError(ValueError):
    """What the user handed over cannot be worked with; the message says why."""


class BadMesh(PartitaError):
    """A mesh has no, repeated or non-positive axes, or does not fit the ranks."""


class BadPlacement(PartitaError):
    """A placement does not parse, or is illegal for a shape on a mesh."""


class BadOptions(PartitaError):
    """An option, a pin or a hardware profile is unknown or malformed."""


class CaptureFailed(PartitaError):
    """A model cannot be captured as one graph; the message names its line."""


class BadRule(PartitaError):
    """A row of the rule table does not parse or does not fit the call it is for."""


class BadPlan(PartitaError):
    """A plan document is damaged, or belongs to another model or mesh."""


class BadBatch(PartitaError):
    """A batch handed to a program has other shapes or types than its example."""


class NoSolution(PartitaError):
    """No assignment of placements satisfies the pins, or none that the memory limit.

    Where it is memory that is short, ``least_bytes`` is what the plan that needs least
    was found to need, ``state_bytes`` what every plan holds from step to step, inputs
    with it, as far as that is known.
    """

    def __init__(
        self, message: str, least_bytes: int | None = None, state_bytes: int = 0
    ) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes
        self.state_bytes = state_bytes


class RankFailed(PartitaError):
    """A rank failed; the message holds that rank's own error."""


class CompilationFailed(PartitaError):
    """Inductor cannot compile a rank's program; the message holds its own error."""


class InvariantViolation(AssertionError):
    """A program broke an invariant after a pass: a bug in that pass."""
