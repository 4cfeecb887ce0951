"""A plan with what its decisions would take on another machine, or take on its own.

Calls are priced as the search prices them, from what the plan prints of them; boxings
by the steps that they are lowered to, transfers by their messages. Decisions stay: a
search on that machine might take others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose
from typing import Generic, TypeVar

import torch

from partita.compiler.cost.boxing import step_seconds, step_sent_bytes
from partita.compiler.cost.compute import Product, op_seconds
from partita.compiler.cost.products import local_sizes, product_of
from partita.compiler.cost.step import find_step, payload_bytes
from partita.compiler.cost.transfer import hop_seconds
from partita.compiler.errors import BadRule
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind
from partita.compiler.plan.check_rules import derived_by_node
from partita.compiler.plan.document import Boxing, Document, LoweringStep, Node
from partita.compiler.plan.explain_formula import printed_call
from partita.compiler.plan.stage_records import Transfer
from partita.compiler.plan.uses import times_in_step, type_of
from partita.compiler.plan.wires import Wire, busiest_bytes, wires_of
from partita.compiler.rules.calls import UNKNOWN, rule_and_factors
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.signatures import ways_in
from partita.compiler.rules.table import default_rules
from partita.compiler.search.candidates import bytes_of, flops_of
from partita.compiler.search.held import update_seconds

D = TypeVar("D", bound=Document)

_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Repriced(Generic[D]):
    """A plan on another machine, and what could not be priced as the search does.

    ``estimated`` are the keys of calls that the plan tells too little of: their price
    on the plan's own machine comes out otherwise than the plan says, since a row is the
    user's own, torch does not know the op here, a constant does not print. Their
    seconds are the plan's, times what that price changes by.
    """

    plan: D
    estimated: tuple[str, ...]


def reprice(document: D, hardware: Hardware) -> Repriced[D]:
    """Return the plan with the seconds that ``hardware`` would take.

    What it predicts of the whole step stays what it was; simulate it for that.
    """
    pricing = _Pricing(document, hardware)
    priced = replace(
        document,
        hardware=hardware.to_dict(),
        nodes={key: pricing.node(key) for key in document.nodes},
        boxings=tuple(map(pricing.boxing, document.boxings)),
        transfers=tuple(map(pricing.transfer, wires_of(document))),
    )
    return Repriced(priced, tuple(pricing.estimated))


def price_anew(document: D, rules: RuleSet = default_rules) -> Repriced[D]:
    """Return the plan with the seconds and bytes of its decisions on its own machine.

    Whatever it says that they are: whoever edits a plan leaves figures as they were.
    Those of ``estimated`` stay. ``rules`` are those that the plan was made with.
    """
    pricing = _Pricing(document, load_hardware(document.hardware), rules)
    priced = replace(
        document,
        nodes={key: pricing.anew(key) for key in document.nodes},
        boxings=tuple(map(pricing.boxing, document.boxings)),
        transfers=tuple(map(pricing.transfer, wires_of(document))),
    )
    return Repriced(priced, tuple(pricing.estimated))


class _Pricing:
    def __init__(
        self, document: Document, hardware: Hardware, rules: RuleSet = default_rules
    ) -> None:
        self.document = document
        self.hardware = hardware
        self.rules = rules
        self.own = load_hardware(document.hardware)
        self.estimated: list[str] = []
        self.known: dict[object, tuple[float, float]] = {}
        self.anew_s: dict[object, float | None] = {}
        self.derived = derived_by_node(document)

    def node(self, key: str) -> Node:
        """Return a node with its seconds on the other machine."""
        node = self.document.nodes[key]
        if not node.seconds:
            return node  # free on every machine
        if node.role is not None:
            return replace(node, seconds=self._update(node))
        own_s, there_s = self._prices(key, node)
        if isclose(own_s, node.seconds, rel_tol=_SAME):
            return replace(node, seconds=there_s)
        self.estimated.append(key)
        return replace(node, seconds=node.seconds * (there_s / own_s if own_s else 1))

    def anew(self, key: str) -> Node:
        """Return a node with its seconds on its own machine, whatever it says."""
        node = self.document.nodes[key]
        if node.role is not None:
            return replace(node, seconds=self._update(node))
        call, derived = printed_call(self.document, node), self.derived.get(key)
        alike = call, node.signature, node.stage, derived
        if alike not in self.anew_s:
            work = None if call is None else self._work(node, call, derived)
            told = work if work and work.is_told else None
            self.anew_s[alike] = told.seconds(self.own) if told else None
        seconds = self.anew_s[alike]
        if seconds is None:
            self.estimated.append(key)
            return node
        return replace(node, seconds=self.document.microbatches * seconds)

    def _update(self, node: Node) -> float:
        """Return the time of the optimizer's step on a parameter; others have none."""
        assert node.role is not None
        if node.role.kind is not InputKind.PARAMETER:
            return 0.0
        parameter = self.document.parameters[node.role.name]
        held = parameter.placements.optimizer
        if held is None:
            return 0.0
        mesh, optimizer = self._mesh(node.stage), self.document.options.optimizer
        return update_seconds(parameter.type, held, mesh, self.hardware, optimizer)

    def _prices(self, key: str, node: Node) -> tuple[float, float]:
        """Return the time of a call on the plan's own machine and on the other."""
        operands = tuple(type_of(self.document, ref) for ref in node.operands)
        derived = self.derived.get(key)
        bare = Call(node.op, node.constants, (), operands, node.types)
        alike = bare, node.signature, node.stage, derived, node.flops, node.ways
        if alike not in self.known:
            work = self._work(node, bare, derived)
            own_s, there_s = (work.seconds(on) for on in (self.own, self.hardware))
            count = self.document.microbatches
            self.known[alike] = count * own_s, count * there_s
        return self.known[alike]

    def _work(self, node: Node, bare: Call, derived: Rule | None) -> _Work:
        mesh = self._mesh(node.stage)
        dtypes = [t.dtype for t in (*bare.results, *bare.operands) if t is not None]
        num_bytes = bytes_of(bare, node.signature, mesh)
        call = printed_call(self.document, node)
        rules = self.rules if derived is None else self.rules.with_(derived)
        try:
            rule, factors = rule_and_factors(rules, call or bare)
        except BadRule:
            flops = node.flops / node.ways / self.document.microbatches
            return _Work(node.op, dtypes[0], flops, num_bytes, None, False, False)
        ways = ways_in(factors, node.signature, mesh)
        product = product_of(factors, local_sizes(factors, ways))
        flops, is_told = flops_of(factors, ways), bool(call) and rule != UNKNOWN
        return _Work(node.op, dtypes[0], flops, num_bytes, product, is_told, rule.free)

    def _mesh(self, stage: int) -> Mesh:
        return self.document.stages[stage].mesh

    def boxing(self, boxing: Boxing) -> Boxing:
        """Return a boxing whose steps have their seconds on the other machine."""
        type_, at = type_of(self.document, boxing.ref), boxing.source
        mesh = self._mesh(self.document.nodes[boxing.producer].stage)
        times = times_in_step(boxing, self.document.microbatches)
        lowering: list[LoweringStep] = []
        for stated in boxing.lowering:
            step = find_step(
                type_.shape, at, stated.after, mesh.axis(stated.axis), mesh
            )
            assert step is not None, f"{boxing.key} has no step to {stated.after}"
            seconds = times * step_seconds(type_, step, mesh, self.hardware)
            lowering.append(
                replace(
                    stated,
                    payload=payload_bytes(type_, step, mesh),
                    bytes=times * step_sent_bytes(type_, step, mesh, self.hardware),
                    seconds=seconds,
                )
            )
            at = stated.after
        return replace(boxing, lowering=tuple(lowering))

    def transfer(self, wire: Wire) -> Transfer:
        """Return a transfer with its seconds on the other machine."""
        shape, dtype = wire.type.shape, wire.type.dtype
        seconds = hop_seconds(shape, dtype, wire.source, wire.target, self.hardware)
        return replace(wire.transfer, bytes=busiest_bytes(wire), seconds=seconds)


@dataclass(frozen=True, slots=True)
class _Work:
    """One rank's share of a call; ``is_told`` where it is priced as the search does."""

    op: str
    dtype: torch.dtype
    flops: float
    num_bytes: int
    product: Product | None
    is_told: bool
    is_free: bool

    def seconds(self, hardware: Hardware) -> float:
        """Return what it takes on a machine."""
        if self.is_free:
            return 0.0
        figures = self.flops, self.num_bytes, self.dtype, hardware.device
        return op_seconds(*figures, self.op, self.product)
