"""Check that the products that a plan joins can be one product."""

from __future__ import annotations

from partita.compiler.errors import BadPlan
from partita.compiler.ir.joined import LEFT
from partita.compiler.plan.document import Document
from partita.compiler.plan.joined import Joinable, Joinables, Rows


def check_joined(document: Document) -> None:
    """Check that each group of a plan of one stage can be one product.

    Raises:
        BadPlan: naming the group, what was found and what is wanted.
    """
    if not document.joined:
        return
    joinables, rows = Joinables(document), Rows()
    at = {key: position for position, key in enumerate(document.order)}
    taken = {
        key: f"fusion[{i}]" for i, keys in enumerate(document.fusion) for key in keys
    }
    for index, keys in enumerate(document.joined):
        path = f"joined[{index}]"
        if len(keys) < 2:
            raise BadPlan(f"{path}: found {len(keys)} products, wanted 2 at least")
        for key in keys:
            if key in taken:
                raise BadPlan(f"{path}: {key!r} is in {taken[key]} already")
            taken[key] = path
        members = [_joinable(document, joinables, path, key) for key in keys]
        for key, member in zip(keys, members, strict=True):
            if member.alike != members[0].alike:
                raise BadPlan(
                    f"{path}: {key!r} is not like {keys[0]!r}; want products of one "
                    "tensor, in one part of the step"
                )
        if sorted(keys, key=at.__getitem__) != list(keys):
            raise BadPlan(f"{path}: want its products in the order of the program")
        name = rows.lay(members)
        if name is not None:
            raise BadPlan(
                f"{path}: parameter {name!r} lies beside others already; want it side "
                "by side with the same ones wherever its products are joined"
            )


def _joinable(
    document: Document, joinables: Joinables, path: str, key: str
) -> Joinable:
    """Return what may be joined of a call.

    Raises:
        BadPlan: where it may not be.
    """
    found = joinables.of(key) if key in document.nodes else None
    if found is None:
        raise BadPlan(
            f"{path}: {key!r} cannot be part of one product; want one of "
            f"{', '.join(LEFT)} with a parameter, transposed, in the placement in "
            "which it is held and updated, whose result no other rank is sent"
        )
    return found
