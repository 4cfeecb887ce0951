"""How Python code names what a module holds, whatever it is called."""

from __future__ import annotations

from keyword import iskeyword


def spell_attribute(base: str, target: str) -> str:
    """Return the code of an attribute's attribute, and so on.

    >>> spell_attribute("self", "towers.global.weight")
    "getattr(self.towers, 'global').weight"
    """
    for name in target.split("."):
        dotted = name.isidentifier() and not iskeyword(name)
        base = f"{base}.{name}" if dotted else f"getattr({base}, {name!r})"
    return base
