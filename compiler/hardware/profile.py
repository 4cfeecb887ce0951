"""What the search believes of a machine: its devices and the links between them.

A profile is a JSON file beside this one (``profiles/``) or the user's own; its form
is ``hardware.schema.json``, whose descriptions are also what error messages say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import inf, prod
from pathlib import Path
from typing import Any, Literal

import jsonschema

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh

_HERE = Path(__file__).parent
_PROFILES = _HERE / "profiles"


class CollectiveKind(StrEnum):
    """The collectives that boxings are lowered to."""

    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's device.

    Attributes:
        flops_per_s: what matmuls reach, by dtype (``f32``, ``bf16``, ...).
        memory_bytes_per_s: what elementwise ops reach, reads and writes together.
        memory_bytes: what one rank may fill.
        launch_s: the fixed cost of one op.
    """

    kind: Literal["cpu", "cuda"]
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    memory_bytes: int
    launch_s: float


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Seconds per message step, and wire bytes per second and rank."""

    alpha_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """A level of the network: it joins ``ranks`` neighbours, all ranks if ``None``."""

    name: str
    ranks: int | None
    costs: Mapping[CollectiveKind, CollectiveCost]


@dataclass(frozen=True)
class Hardware:
    """A machine: one kind of device, and the links from the slowest to the fastest.

    ``axes`` names the link of a mesh axis where the default would be wrong.
    ``source`` says where the figures come from.
    """

    name: str
    source: str
    device: Device
    links: tuple[Link, ...]
    axes: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        names = [link.name for link in self.links]
        if not names or self.links[0].ranks is not None:
            raise BadOptions(
                f"hardware {self.name}: links must start with the slowest, which joins "
                f"all ranks ('ranks': null); found {names or 'no links'}"
            )
        for axis, link in self.axes.items():
            if link not in names:
                raise BadOptions(
                    f"hardware {self.name}: axes.{axis} is {link!r}; want the name of "
                    f"a link, one of {', '.join(names)}"
                )

    def __hash__(self) -> int:
        return hash((self.name, self.source))

    def link(self, mesh: Mesh, axis: int) -> Link:
        """Return the link that ``axis`` of ``mesh`` runs over.

        It is the fastest that joins as many neighbours as a group of the axis spans.
        """
        named = self.axes.get(mesh.names[axis])
        if named is not None:
            return next(link for link in self.links if link.name == named)
        span = prod(mesh.sizes[axis:])
        fitting = [
            link for link in self.links if link.ranks is None or link.ranks >= span
        ]
        return fitting[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document; an infinite bandwidth is null there."""
        device = self.device
        return {
            "name": self.name,
            "source": self.source,
            "device": {
                "kind": device.kind,
                "flops_per_s": dict(device.flops_per_s),
                "memory_bytes_per_s": device.memory_bytes_per_s,
                "memory_bytes": device.memory_bytes,
                "launch_s": device.launch_s,
            },
            "links": [
                {
                    "name": link.name,
                    "ranks": link.ranks,
                    "costs": {
                        kind.value: {
                            "alpha_s": cost.alpha_s,
                            "bytes_per_s": (
                                None if cost.bytes_per_s == inf else cost.bytes_per_s
                            ),
                        }
                        for kind, cost in link.costs.items()
                    },
                }
                for link in self.links
            ],
            "axes": dict(self.axes),
        }

    @classmethod
    def from_dict(cls, document: Any, where: str = "hardware profile") -> Hardware:
        """Read the JSON document; ``where`` names it in messages.

        Raises:
            BadOptions: naming the first key that is wrong.
        """
        entries = _validated(document, where)
        return cls(
            name=entries["name"],
            source=entries["source"],
            device=Device(**entries["device"]),
            links=tuple(_link(link) for link in entries["links"]),
            axes=entries.get("axes", {}),
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
    path = Path(hardware)
    if not path.is_file():
        raise BadOptions(
            f"hardware {str(hardware)!r} is neither a file nor a profile; the profiles "
            f"are {', '.join(profile_names())}"
        )
    return _load_file(path)


@lru_cache
def _load_profile(name: str) -> Hardware:
    return _load_file(_PROFILES / f"{name}.json")


def _load_file(path: Path) -> Hardware:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadOptions(f"{path}: not a JSON file: {error}") from error
    return Hardware.from_dict(document, str(path))


def _link(entries: Mapping[str, Any]) -> Link:
    costs = {
        CollectiveKind(kind): CollectiveCost(
            alpha_s=cost["alpha_s"],
            bytes_per_s=inf if cost["bytes_per_s"] is None else cost["bytes_per_s"],
        )
        for kind, cost in entries["costs"].items()
    }
    return Link(entries["name"], entries["ranks"], costs)


@lru_cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((_HERE / "hardware.schema.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def _validated(document: Any, where: str) -> dict[str, Any]:
    """Return ``document`` when it fits the schema; else say what does not, and how."""
    errors = sorted(
        _validator().iter_errors(document), key=lambda e: list(map(str, e.path))
    )
    if not errors:
        return document
    error = errors[0]
    path = ".".join(str(part) for part in error.absolute_path)
    schema = error.schema
    assert isinstance(schema, Mapping)
    wanted = schema.get("description", "")
    match error.validator:
        case "required":
            key = next(k for k in schema["required"] if k not in error.instance)
            what = f"{path or 'it'} has no key {key!r}"
        case "additionalProperties":
            key = next(k for k in error.instance if k not in schema["properties"])
            what = f"{path or 'it'} has an unknown key {key!r}"
            wanted = "one of " + ", ".join(schema["properties"])
        case _:
            found = json.dumps(error.instance, default=str)
            found = found if len(found) <= 60 else f"{found[:57]}..."
            what = f"{path or 'it'} is {found}"
    raise BadOptions(f"{where}: {what}; want {wanted}")
