"""What each call and boxing of a plan makes on one rank, in whatever order they run.

How a tensor lies follows from what it is made of, so it is found once, when the call
or the boxing is first met. Plans that differ in their turns and buckets alone share it.
Tensors are named as plans do: a call's by its ``Ref``, a boxing's by its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from partita.compiler.cost.boxing_ways import Ways
from partita.compiler.cost.bucket_memory import Moment, moments_of
from partita.compiler.cost.rank import Rank, Result, Shard
from partita.compiler.cost.storage import Tensor
from partita.compiler.ir.program import Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Boxing, Document, Ref
from partita.compiler.plan.emitted import inside_groups
from partita.compiler.plan.uses import boxings_by_use, produced, type_of

Name = tuple[str, int] | str
"""Of a tensor: a ``Ref`` for what a call makes, or the key of a boxing."""

Tensors = Mapping[Name, Tensor]
"""Those that there are."""


class CallRecipe(NamedTuple):
    """What a call takes, and makes.

    ``waits`` says whether it needs what is in its operands: a view does not.
    """

    operands: tuple[Name, ...]
    waits: bool
    results: tuple[Result, ...]
    workspace_bytes: int


class BoxingRecipe(NamedTuple):
    """What boxings that are carried out together take and make, and how."""

    phase: Phase
    operands: tuple[Name, ...]
    results: tuple[str, ...]
    shards: tuple[Shard, ...]
    moments: tuple[Moment, ...]


class Recipes:
    """Those of the rank at ``coordinates``."""

    def __init__(self, document: Document, coordinates: tuple[int, ...]) -> None:
        self.document = document
        device = str(document.hardware["device"]["kind"])
        self.rank = Rank(document.mesh, coordinates, device)
        self._boxings = boxings_by_use(document)
        self._boxed = {consumer for consumer, _, _ in self._boxings}
        self._inside = inside_groups(document)
        self._joined = {key: keys for keys in document.joined for key in keys}
        self._ways = Ways(document, self.rank)
        self._calls: dict[str, CallRecipe] = {}
        self._carried: dict[tuple[str, ...], BoxingRecipe] = {}

    def boxing(self, consumer: str, ref: Ref, wanted: Placement) -> Boxing | None:
        """Return what a tensor goes through on its way to a consumer."""
        return self._boxings.get((consumer, ref, wanted))

    def seen(self, consumer: str, ref: Ref, wanted: Placement) -> Name:
        """Return the name of a tensor as its consumer sees it."""
        boxing = self.boxing(consumer, ref, wanted)
        return ref if boxing is None else boxing.key

    def call(self, key: str, is_fused: bool, tensors: Tensors) -> CallRecipe:
        """Return the recipe of a call, whose operands are among ``tensors``.

        ``is_fused`` where it is one of several calls of one kernel.
        """
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = self._call(key, is_fused, tensors)
        return found

    def _call(self, key: str, is_fused: bool, tensors: Tensors) -> CallRecipe:
        if key in self._joined:
            return self._part_of_product(key, self._joined[key])
        node = self.document.nodes[key]
        operands: tuple[Name, ...] = node.operands
        if key in self._boxed:
            wanted = zip(node.operands, node.signature.operands, strict=True)
            operands = tuple([self.seen(key, *each) for each in wanted])
        given = [tensors[name].shard for name in operands]
        results, workspace, is_view = self.rank.made(node, given, is_fused)
        if self._inside:
            results = tuple([self._own(key, result) for result in results])
        return CallRecipe(operands, is_fused or not is_view, results, workspace)

    def _own(self, key: str, result: Result) -> Result:
        """Return a result of a call, which a fused group may keep to itself."""
        is_inside = (key, result.position) in self._inside
        return result._replace(num_bytes=0) if is_inside else result

    def _part_of_product(self, key: str, keys: Sequence[str]) -> CallRecipe:
        """Return the recipe of a product among those that are one.

        The first makes all of it, of which the others are views.
        """
        types = {each: self._made(each) for each in keys}
        columns = sum(type_.shape[1] for type_ in types.values())
        shard = self.rank.shard(types[key], (columns, 1))
        if key != keys[0]:
            view = (Result(0, shard, 0, 0),)
            return CallRecipe((Ref(keys[0]),), False, view, workspace_bytes=0)
        node = self.document.nodes[key]
        wanted = zip(node.operands, node.signature.operands, strict=True)
        operands = tuple(self.seen(key, ref, placement) for ref, placement in wanted)
        num_bytes = self.rank.rounded(sum(type_.num_bytes for type_ in types.values()))
        made = (Result(0, shard, num_bytes, None),)
        return CallRecipe(operands, True, made, workspace_bytes=0)

    def _made(self, key: str) -> TensorType:
        """Return the rank's part of the first result of a call."""
        ref = Ref(key)
        return self.rank.type(type_of(self.document, ref), produced(self.document, ref))

    def boxings(self, boxings: Sequence[Boxing], tensors: Tensors) -> BoxingRecipe:
        """Return the recipe of a boxing, or of those of a bucket together."""
        keys = tuple([boxing.key for boxing in boxings])
        found = self._carried.get(keys)
        if found is None:
            found = self._carried[keys] = self._together(boxings, tensors)
        return found

    def _together(self, boxings: Sequence[Boxing], tensors: Tensors) -> BoxingRecipe:
        nodes = self.document.nodes
        first = nodes.get(boxings[0].consumers[0]) or nodes[boxings[0].producer]
        operands = tuple([boxing.ref for boxing in boxings])
        pairs = zip(boxings, operands, strict=True)
        ways = [self._ways.of(boxing, tensors[ref].shard) for boxing, ref in pairs]
        chains = [chain for chain, _ in ways]
        return BoxingRecipe(
            first.phase,
            operands,
            tuple([boxing.key for boxing in boxings]),
            tuple(shard for _, shard in ways),
            tuple(moments_of(chains, self._ways.is_exchanged)),
        )
