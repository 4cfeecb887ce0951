"""What the search believes of a machine: its devices and the links between them.

A profile is a JSON file beside this one (``profiles/``) or the user's own; its form
is ``hardware.schema.json``, whose descriptions are also what error messages say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from os.path import isfile
from pathlib import Path
from typing import Any

from partita.compiler.errors import BadOptions
from partita.compiler.hardware.codec import (
    device_from_dict,
    device_to_dict,
    link_from_dict,
    link_to_dict,
    validated,
)
from partita.compiler.hardware.device import Device
from partita.compiler.hardware.links import (
    CollectiveCost,
    CollectiveKind,
    Leg,
    Link,
    legs_of,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.json_file import read_json
from partita.compiler.plan.units import shown

__all__ = [
    "CollectiveCost",
    "CollectiveKind",
    "Device",
    "Hardware",
    "Link",
    "load_hardware",
    "profile_names",
]

_PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class Hardware:
    """A machine: one kind of device, and the links from the slowest to the fastest.

    Attributes:
        name: what it is called.
        source: a sentence on where the figures come from.
        device: one rank's device.
        links: the levels of the network, slowest first.
        axes: the link of a mesh axis where the default would be wrong.
        devices_per_node: how many devices share a node and its network; ``None``
            where nobody said.
        nodes: how many nodes there are; ``None`` for any number. Plans may be for
            more, as if they were joined by the same links.
        overlap: seconds of computing that a rank gets done in a second of a message
            that it does not wait for; 0 where messages take its time as any op does.
        sources: where the single figures come from, by their path in the document
            (``device.flops_per_s.bf16``) or the beginning of it.
        errors: how far a fitted figure is from what it was fitted to, as a median of
            relative errors, by the path of the figure.
    """

    name: str
    source: str
    device: Device
    links: tuple[Link, ...]
    axes: Mapping[str, str] = field(default_factory=dict[str, str])
    devices_per_node: int | None = None
    nodes: int | None = None
    overlap: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    errors: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        names = [link.name for link in self.links]
        if not names or self.links[0].ranks is not None:
            raise BadOptions(
                f"hardware {self.name}: links must start with the slowest, which joins "
                f"all ranks ('ranks': null); found {names or 'no links'}"
            )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadOptions(
                f"hardware {self.name}: two links have the name {twice!r}; want a name "
                "of its own for each"
            )
        for axis, link in self.axes.items():
            if link not in names:
                raise BadOptions(
                    f"hardware {self.name}: axes.{axis} is {link!r}; want the name of "
                    f"a link, one of {', '.join(names)}"
                )

        sizes = [cache.bytes for cache in self.device.caches]
        if sizes != sorted(set(sizes)):
            raise BadOptions(
                f"hardware {self.name}: device.caches hold {sizes} bytes; want the "
                "smallest first"
            )

    def __hash__(self) -> int:
        return hash((self.name, self.source))

    def link(self, mesh: Mesh, axis: int) -> Link:
        """Return the slowest link that a group of ``axis`` of ``mesh`` runs over."""
        return self.legs(mesh, axis)[-1].link

    def legs(self, mesh: Mesh, axis: int) -> tuple[Leg, ...]:
        """Return the levels that a group of ``axis`` passes, the fastest first.

        Ranks of the last axis are neighbours. The links are those that join as many
        neighbours as a group spans, unless ``axes`` names one.
        """
        size = mesh.sizes[axis]
        named = self.axes.get(mesh.names[axis])
        if named is not None:
            link = next(link for link in self.links if link.name == named)
            return (Leg(link, size, 1),)
        return legs_of(self.links, size, prod(mesh.sizes[axis + 1 :]))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document; an infinite bandwidth is null there."""
        entries: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            "nodes": self.nodes,
            "devices_per_node": self.devices_per_node,
            "device": device_to_dict(self.device),
            "links": [link_to_dict(link) for link in self.links],
            "overlap": self.overlap,
            "axes": dict(self.axes),
            "sources": dict(self.sources),
            "errors": dict(self.errors),
        }
        optional = ("nodes", "devices_per_node", "overlap", "sources", "errors")
        return {k: v for k, v in entries.items() if v or k not in optional}

    @classmethod
    def from_dict(cls, document: Any, where: str = "hardware profile") -> Hardware:
        """Read the JSON document; ``where`` names it in messages.

        Raises:
            BadOptions: naming the first key that is wrong.
        """
        return cls._of(validated(document, where))

    @classmethod
    def load(cls, path: Path) -> Hardware:
        """Read the JSON file.

        Raises:
            BadOptions: naming the file and the first key that is wrong.
        """
        document, where = read_json(path, BadOptions)
        entries = validated(document, where)
        try:
            return cls._of(entries)
        except BadOptions as error:  # which names the profile
            raise BadOptions(f"{where}: {error}") from None

    @classmethod
    def _of(cls, entries: Mapping[str, Any]) -> Hardware:
        return cls(
            name=entries["name"],
            source=entries["source"],
            device=device_from_dict(entries["device"]),
            links=tuple(link_from_dict(link) for link in entries["links"]),
            axes=entries.get("axes", {}),
            devices_per_node=entries.get("devices_per_node"),
            nodes=entries.get("nodes"),
            overlap=entries.get("overlap", 0.0),
            sources=entries.get("sources", {}),
            errors=entries.get("errors", {}),
        )


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that come with Partita."""
    return tuple(sorted(path.stem for path in _PROFILES.glob("*.json")))


def load_hardware(hardware: str | Path | Mapping[str, Any] | Hardware) -> Hardware:
    """Return the profile of that name, in that file or in that document.

    Raises:
        BadOptions: when there is none, or it is malformed.

    >>> load_hardware("cpu-gloo").device.kind
    'cpu'
    """
    if isinstance(hardware, Hardware):
        return hardware
    if isinstance(hardware, Mapping):
        return Hardware.from_dict(dict(hardware))
    if isinstance(hardware, str) and hardware in profile_names():
        return _load_profile(hardware)
    if not isfile(hardware):  # of a Path it would fail for a name that is too long
        raise BadOptions(
            f"hardware {shown(str(hardware))} is neither a file nor a profile; the "
            f"profiles are {', '.join(profile_names())}"
        )
    return Hardware.load(Path(hardware))


@lru_cache
def _load_profile(name: str) -> Hardware:
    return Hardware.load(_PROFILES / f"{name}.json")
