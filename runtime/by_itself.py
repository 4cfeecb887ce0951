"""What a rank does by itself, while others are elsewhere in the schedule."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from partita.compiler.errors import BadOptions

_where: ContextVar[str] = ContextVar("partita_by_itself", default="")


@contextmanager
def by_itself(where: str) -> Generator[None]:
    """Let nothing inside wait for the other ranks, which ``where`` keeps elsewhere."""
    token = _where.set(where)
    try:
        yield
    finally:
        _where.reset(token)


def check_together(what: str) -> None:
    """Check that all ranks can do ``what`` together here.

    Raises:
        BadOptions: where this rank is by itself: it would wait for ever.
    """
    if where := _where.get():
        raise BadOptions(
            f"{what} is asked of all ranks, which {where} does not bring together: "
            "stages update at different times there; want what each rank can do alone, "
            "like torch.nn.utils.clip_grad_value_, or step()"
        )
