"""Which ops may be one product, and keys of what stands for such products.

See plan/joined.py and passes/join_products.py.
"""

from __future__ import annotations

from collections.abc import Mapping

LEFT: Mapping[str, int] = {"aten.mm.default": 0, "aten.addmm.default": 1}
"""Ops that are joined, and which operand they share.

The next is a parameter, transposed; what stands before is one as it is held.
"""


def joined_key(group: int) -> str:
    """Return the key of the product that those of a group of the plan become."""
    return f"joined[{group}]"


def beside_key(group: int, operand: int) -> str:
    """Return the key of what puts the parameters of a group side by side.

    >>> beside_key(0, 1), lies_beside(beside_key(0, 1)), lies_beside(joined_key(0))
    ('joined[0]/1', True, False)
    """
    return f"{joined_key(group)}/{operand}"


def lies_beside(key: str) -> bool:
    """Whether a key is one of ``beside_key``."""
    group, slash, operand = key.rpartition("]/")
    return bool(slash) and group.startswith("joined[") and operand.isdecimal()
