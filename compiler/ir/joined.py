"""Keys of what stands for products that are one; see passes/join_products.py."""

from __future__ import annotations


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
