"""A report that replays elsewhere: a plan with its graph, but no weights and no code.

Whoever opens it sees, on one CPU process, whether the plan's programs compute what the
graph computes, on values that are drawn from a seed; the model is not needed.
"""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.inputs import name_leaves
from partita.compiler.capture.output_form import OutputForm
from partita.compiler.capture.program_text import parse_program, print_program
from partita.compiler.errors import BadOptions, BadPlan
from partita.compiler.ir.in_time import WHOLE
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Program,
    Value,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.json_file import parse_json
from partita.compiler.plan.inputs import to_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.store import format_json
from partita.compiler.plan.units import printable
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.lowering import check_same_model, loss_of
from partita.microbatched import in_microbatches
from partita.passes.promote_precision import promote_precision, promote_tensor
from partita.runtime.feeds import FeedKey, shards_of
from partita.runtime.virtual import run_all
from partita.verifying.bundle_rules import check_rules, rows_to_carry, with_carried
from partita.verifying.precision import double_precision
from partita.verifying.reference import Reference
from partita.verifying.relative_error import largest_of
from partita.verifying.report import Report
from partita.verifying.verification import Verifier
from partita.version import __version__

PLAN, GRAPH, ABOUT = "plan.json", "graph.txt", "bundle.json"
_MOST_BYTES = 1 << 29
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SEEDS = range(-(1 << 63), 1 << 64)  # of torch.Generator.manual_seed
_INTEGERS = range(-(1 << 63), 1 << 63)


class Range(NamedTuple):
    """The integers of an input: from ``low`` to ``high``, and a negative mark or 0.

    A negative one, as -100 among labels, stands for something else than itself.
    """

    low: int
    high: int
    mark: int = 0

    @classmethod
    def of(cls, values: torch.Tensor) -> Range:
        """Return the range of a tensor of integers."""
        values = values.to(torch.int64)
        plain = values[values >= 0]
        low, high = (int(plain.min()), int(plain.max())) if plain.numel() else (0, 0)
        return cls(low, high, min(int(values.min()), 0))

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Return integers of the range; one in eight is the mark, if there is one."""
        top = min(max(self.high, self.low) + 1, _INTEGERS[-1])
        drawn = torch.randint(min(self.low, top - 1), top, shape, generator=generator)
        if self.mark < 0:
            marked = torch.rand(shape, generator=generator) < 0.125
            drawn = drawn.masked_fill(marked, self.mark)
        return drawn


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds.

    Attributes:
        plan: the plan.
        program: the captured graph, on no mesh, the batch in one piece.
        ranges: of inputs of integers, by name.
        about: versions, seed, rows of the sender's own, and what the sender saw.
        rules: the table that the plan was made with.
    """

    plan: Plan
    program: Program
    ranges: Mapping[str, Range]
    about: Mapping[str, Any]
    rules: RuleSet = default_rules

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: Plan,
        seed: int = 0,
        rules: RuleSet = default_rules,
    ) -> Bundle:
        """Capture the graph of ``model`` and replay it here once.

        ``rules`` are those that the plan was made with; rows of one's own come along.

        Raises:
            BadOptions: for a plan made with other rules, rows that are more than text,
                and a seed that is none.
            BadPlan: when the plan is of another model.
        """
        _check_seed(seed)
        loss = loss_of(plan, None)
        captured = capture(
            model,
            args,
            kwargs,
            loss=loss,
            train=plan.options.train,
            precision=plan.options.precision,
        )
        leaves = name_leaves(model, args, kwargs)
        ranges = {
            name: Range.of(leaf)
            for name, leaf in leaves.items()
            if isinstance(leaf, torch.Tensor)
            and not leaf.is_floating_point()
            and leaf.numel()
            and not leaf.is_meta
        }
        about = {
            "seed": seed,
            "versions": {
                "partita": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            "rules": rows_to_carry(plan, rules),
        }
        bundle = cls(plan, captured.program, ranges, about, rules)
        told = _told(bundle.replay())
        check_rules(bundle.captured.program, plan, rules)
        return replace(bundle, about={**about, "replayed": told})

    @property
    def captured(self) -> Captured:
        """The program of one of the plan's microbatches."""
        whole = Captured(self.program, to_capture(self.plan.inputs), OutputForm())
        return in_microbatches(whole, self.plan.microbatches, self.rules)

    def replay(self) -> Report:
        """Run every rank of the plan in this process and compare with the graph.

        Raises:
            BadPlan: when the plan is of another graph.
        """
        captured = self.captured
        model = _Skeleton(self.plan.model.class_name, self.program, self._values())
        check_same_model("graph", captured.program, self.plan)
        double, own = (self._reference(model, is_double=d) for d in (True, False))
        verifier = Verifier(model, (), model.batch, None, double, own)
        return verifier.verify_captured(captured, self.plan, self.rules)

    def save(self) -> bytes:
        """Return the bundle as a zip."""
        shapes = {n: str(leaf) for n, leaf in self.plan.inputs.tensors.items()}
        about = {**self.about, "ranges": self.ranges, "shapes": shapes}
        files = {
            PLAN: format_json(self.plan.to_dict()) + "\n",
            GRAPH: print_program(self.program),
            ABOUT: json.dumps(about, indent=1, sort_keys=True) + "\n",
        }
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as archive:
            for name, text in files.items():
                archive.writestr(
                    zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED
                )
        return held.getvalue()

    @classmethod
    def load(cls, path: str, rules: RuleSet = default_rules) -> Bundle:
        """Read a bundle, from whomever it comes: nothing in it is executed.

        The rows that it brings count, unless ``rules`` are others than the default. Ops
        of one's own it may call only where ``rules`` have rows for them.

        Raises:
            BadPlan: naming the file, what was found and what is wanted.
        """
        texts = _read(path)
        try:
            plan = Plan.from_dict(parse_json(texts[PLAN]))
            known = frozenset(row.op for row in rules.rows)
            program = parse_program(texts[GRAPH], known)
            about = parse_json(texts[ABOUT])
            ranges = {str(n): Range(*map(int, r)) for n, r in about["ranges"].items()}
            if not all(x in _INTEGERS for own in ranges.values() for x in own):
                raise BadPlan("ranges: found one beyond integers of 64 bits")
            seed = int(about["seed"])
            _check_seed(seed)
            carried = with_carried(about.get("rules", ()))
            own = carried if rules is default_rules else rules
        except (BadOptions, BadPlan) as error:
            raise BadPlan(f"{path}: {printable(str(error))}") from None
        except Exception as error:
            reason = printable(" ".join(str(error).split()))[:200]
            raise BadPlan(
                f"{path}: found a damaged bundle ({type(error).__name__}: {reason}); "
                "want what partita bundle saved"
            ) from None
        return cls(plan, program, ranges, {**about, "seed": seed}, own)

    def _values(self) -> dict[FeedKey, torch.Tensor]:
        """Return values for what enters, drawn from the seed in the order of names."""
        generator = torch.Generator().manual_seed(int(self.about["seed"]))
        found: dict[FeedKey, torch.Tensor] = {}
        for node, role in self.program.placeholders():
            if role.kind.is_state or role.kind is InputKind.INPUT:
                kind, among = type_of(Value(node, 0)), self.ranges.get(role.name)
                drawn = _drawn(kind, role.kind, among or Range(0, 1), generator)
                found[role.kind, role.name] = drawn
        return found

    def _reference(self, model: _Skeleton, *, is_double: bool) -> Reference:
        """Run the graph itself, on one rank, in one precision."""
        local = _whole(self.program)
        values = dict(model.values)
        with torch.no_grad():
            if is_double:
                with double_precision():
                    values = {key: promote_tensor(x) for key, x in values.items()}
                    (local,) = promote_precision([local])
                    (made,) = run_all([local], [shards_of(local, values)])
            else:
                (made,) = run_all([local], [shards_of(local, values)])
        return _as_reference(local, made, values)


def _check_seed(seed: int) -> None:
    if seed not in _SEEDS:
        raise BadOptions(
            f"seed: found one of {seed.bit_length()} bits, wanted one from -2**63 to "
            "2**64 - 1"
        )


def _drawn(
    kind: TensorType,
    role: InputKind,
    among: Range,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return values of a type: matrices scaled by their width, the rest around one."""
    if not (kind.dtype.is_floating_point or kind.dtype.is_complex):
        return among.draw(kind.shape, generator).to(kind.dtype)
    drawn = torch.rand(kind.shape, generator=generator, dtype=torch.float64)
    if role is InputKind.INPUT or kind.ndim > 1:
        width = 1 if role is InputKind.INPUT else kind.shape[-1]
        return ((drawn - 0.5) * (12 / max(width, 1)) ** 0.5).to(kind.dtype)
    return (drawn + 0.5).to(kind.dtype)


class _Skeleton(torch.nn.Module):
    """Has the names and values of a model, and no forward of its own."""

    def __init__(
        self, class_name: str, program: Program, values: dict[FeedKey, torch.Tensor]
    ) -> None:
        super().__init__()
        self.class_name = class_name
        self.values = values
        self.batch: dict[str, Any] = {}
        for (kind, name), value in values.items():
            if kind is InputKind.INPUT:
                self.batch[name] = value
            elif kind is InputKind.PARAMETER:
                is_float = value.is_floating_point()
                self._at(name, torch.nn.Parameter(value, requires_grad=is_float))
            else:
                self._at(name, value)

    def _at(self, name: str, value: torch.Tensor) -> None:
        *path, last = name.split(".")
        module: torch.nn.Module = self
        for part in path:
            if part not in module._modules:
                module._modules[part] = torch.nn.Module()
            module = cast(torch.nn.Module, module._modules[part])
        if isinstance(value, torch.nn.Parameter):
            module._parameters[last] = value
        else:
            module._buffers[last] = value


def _whole(program: Program) -> LocalProgram:
    """Return a program as the one rank of a mesh of one runs it."""
    mesh, whole = Mesh(one=1), Placement.broadcast(1)
    results = program.results()
    return LocalProgram(
        program.graph_module,
        program.inputs,
        program.outputs,
        tuple(type_of(Value(node, 0)) for node, _ in program.placeholders()),
        tuple(type_of(value_of(node)) for node, _ in results),
        (whole,) * len(program.inputs),
        (whole,) * len(results),
        mesh,
        (0,),
        program.constants,
        WHOLE,
    )


def _as_reference(
    local: LocalProgram,
    made: tuple[torch.Tensor | None, ...],
    values: Mapping[FeedKey, torch.Tensor],
) -> Reference:
    names = {
        OutputKind.LOSS: "loss",
        OutputKind.OUTPUT: "output:{}",
        OutputKind.GRADIENT: "{}",
        OutputKind.MUTATED_BUFFER: "buffer:{}",
    }
    found: dict[str, torch.Tensor] = {}
    gradients: list[torch.Tensor] = []
    for role, value in zip(local.outputs, made, strict=True):
        if value is not None:
            found[names[role.kind].format(role.name)] = value
            if role.kind is OutputKind.GRADIENT:
                gradients.append(value)
    kept = {
        f"buffer:{name}": value
        for (kind, name), value in values.items()
        if kind is InputKind.BUFFER and f"buffer:{name}" not in found
    }
    return Reference(found, max(map(largest_of, gradients), default=0.0), kept)


def _told(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "max_error": str(report.max_error),
        "failure": report.failure,
    }


def _read(path: str) -> dict[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            if set(sizes) != {PLAN, GRAPH, ABOUT}:
                listed = ", ".join(sorted(map(printable, sizes)))[:200]
                raise BadPlan(
                    f"{path}: found {listed}, wanted a bundle of {PLAN}, {GRAPH} and "
                    f"{ABOUT}"
                )
            if sum(sizes.values()) > _MOST_BYTES:
                raise BadPlan(f"{path}: found over 512 MiB, wanted less")
            return {name: archive.read(name).decode() for name in sizes}
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadPlan(f"{path}: cannot be read: {reason}") from None
    except BadPlan:
        raise
    except Exception as error:
        raise BadPlan(
            f"{path}: found no zip of text ({printable(str(error))[:200]}); want what "
            "partita bundle saved"
        ) from None
