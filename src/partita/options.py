"""What a plan may be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import cast

from partita.compiler.capture.mixed_precision import PRECISIONS
from partita.compiler.capture.scored_model import LossFunction
from partita.compiler.cost.optimizer_memory import OPTIMIZERS
from partita.compiler.errors import BadOptions
from partita.compiler.hardware.profile import Hardware
from partita.compiler.plan.units import parse_bytes, shown
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.compiler.schedules.make import SCHEDULES

_MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Options:
    """The choices of ``plan`` beyond the model and the mesh.

    Attributes:
        loss: computes the scalar loss from the model's outputs; ``None`` where the
            model returns it, or an output with ``.loss``.
        hardware: the name of a shipped profile, the path of one's own, or a profile.
        memory: the most that one rank may use, e.g. ``"24GiB"``, or bytes. The
            search finds placements and what to recompute that keep to it.
        optimizer: what ``predicted`` reckons with: ``"sgd"``, ``"adam"``, ``"adamw"``
            as torch makes them, ``"momentum-sgd"``, which keeps a sum of gradients,
            ``"fused-adamw"``, one kernel for all of an update, or ``"mixed-adamw"``,
            which keeps copies of parameters in 16 bits in f32.
        train: plan the backward too; otherwise the model is for inference.
        precision: ``"bfloat16"`` or ``"float16"``: the model runs as it would under
            ``torch.autocast`` with that dtype. Parameters, their gradients and the
            optimizer stay as they are. ``None``: as the model is.
        wide_sums: add gradients up over ranks in the dtype of their parameter where
            they are made in 16 bits, as DDP does; with ``False`` before they are cast,
            in half of the bytes, where that is faster.
        microbatches: into how many equal parts a batch is cut in time; their gradients
            add up before they are reduced. ``"auto"`` is the fastest number for a
            pipeline. For one stage it is 1, but where the fastest plan does not keep
            to ``memory`` it is the fastest of those of 1, 2, 4, ... that are tried in
            time and do.
        schedule: the order of the stages' work: ``"gpipe"``, ``"1f1b"``,
            ``"interleaved"``, ``"zero-bubble"`` or ``"frugal"``, which holds least.
            ``"auto"`` is the fastest of them that keeps to ``memory``, or
            ``"sequential"`` with one stage, which has no other.
        stages_per_rank: into how many stages, one after another, the ranks of a
            pipeline cut their part; more than one for ``"interleaved"`` alone, for
            which ``"auto"`` is the fastest number of 2 to 4.
        pins: placements asked for beforehand, by the name of a parameter, buffer, input
            or node, the path of a module or a pattern (``"layers.*.mlp.*"``):
            ``"(S(0), B)"``, for a parameter's use ``"use=(B, B)"``, ``"on tp"`` for
            any split along that axis. With a price, ``"(S(0), B) ~ 1ms"``, a pin may
            be broken; see ``compiler/search/pins.py`` and ``pin_names.py``.
        recompute: what is made again for the backward instead of kept from the forward:
            names of modules (``"transformer.h.*"``: activation checkpoints), of nodes
            (``"*.mlp.act/*"``), of parameters whose gather is to be repeated
            (``"parameter:*"``); see ``compiler/search/again.py``.
        fuse: let small ops become one kernel, and products of one tensor one product,
            where that is predicted to pay; the first step then compiles the kernels.
        bucket: how many bytes of gradients one collective carries, or of gathered
            parameters, ``"25MiB"`` unless said; a last tensor may come on top. With 0
            each is sent by itself.
        time_limit: seconds that the search may take, shared by all meshes and numbers
            of microbatches that are tried. Capturing the model comes on top, and a
            little more where the time is over before any plan was found; where none
            is, finding what conflicts and what would help may take as long again.
        rules: the table of op rules.

    Raises:
        BadOptions: for a value that no plan can follow.
    """

    loss: LossFunction | None = None
    hardware: str | Path | Hardware = "cpu-gloo"
    memory: str | float | None = None
    optimizer: str = "adamw"
    train: bool = True
    precision: str | None = None
    wide_sums: bool = True
    microbatches: int | str = "auto"
    schedule: str = "auto"
    stages_per_rank: int | str = "auto"
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    recompute: Sequence[str] = ()
    fuse: bool = False
    bucket: str | float = "25MiB"
    time_limit: float = 40.0
    rules: RuleSet = default_rules

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise BadOptions(f"optimizer {self.optimizer!r} is not one of {known}")
        for name in ("train", "wide_sums", "fuse"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise BadOptions(f"{name} is {value!r}; want True or False")
        precision = cast(object, self.precision)
        if precision is not None and precision not in PRECISIONS:
            raise BadOptions(
                f"precision is {precision!r}; want one of {', '.join(PRECISIONS)}, or "
                "None, which leaves the model as it is"
            )
        self._check_pins(cast(object, self.pins))
        if isinstance(self.recompute, str):
            raise BadOptions(
                f"recompute is {self.recompute!r}; want a sequence of names, like "
                f"({self.recompute!r},)"
            )
        limit = cast(object, self.time_limit)  # callers may be untyped
        if (
            isinstance(limit, bool)
            or not isinstance(limit, int | float)
            or not (0 < limit <= _MOST_SECONDS or limit == inf)
        ):
            raise BadOptions(
                f"time_limit is {shown(limit)}; want seconds above 0, to 1e9, or inf"
            )
        if self.loss is not None and not callable(self.loss):
            raise BadOptions(f"loss is {self.loss!r}; want a function of the outputs")
        if self.memory is not None:
            parse_bytes(self.memory)
        if isinstance(self.bucket, bool) or self.bucket != 0:
            parse_bytes(self.bucket, "bucket")
        self._check_microbatches(cast(object, self.microbatches))
        known = ("auto", "sequential", *sorted(SCHEDULES))
        if self.schedule not in known:
            raise BadOptions(
                f"schedule is {self.schedule!r}; want one of {', '.join(known)}"
            )
        stages = cast(object, self.stages_per_rank)
        if stages != "auto" and (type(stages) is not int or stages < 1):
            raise BadOptions(
                f"stages_per_rank is {stages!r}; want a whole number from 1 on, or "
                "'auto'"
            )

    def _check_pins(self, pins: object) -> None:
        if not isinstance(pins, Mapping):
            raise BadOptions(
                f"pins is {pins!r}; want placements by name, like "
                "{'h.*.mlp': 'on tp'}"
            )
        for name in cast(Mapping[object, object], pins):
            if not isinstance(name, str):
                raise BadOptions(
                    f"pins has {name!r}; want the name of a parameter, buffer, input, "
                    "node or module, or a pattern"
                )

    def _check_microbatches(self, count: object) -> None:
        if count == "auto" or (type(count) is int and count == 1):
            return
        if type(count) is not int or count < 1:
            raise BadOptions(
                f"microbatches is {count!r}; want a whole number from 1 on, or 'auto'"
            )
        if not self.train:
            raise BadOptions(
                f"microbatches is {count!r}, but only a training step is run in parts; "
                "with train=False want 1, or 'auto'"
            )
