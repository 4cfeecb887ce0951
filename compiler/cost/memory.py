"""The memory of one rank over a step, from the plan alone.

The plan's nodes are gone through in the order in which a rank runs them, boxings where
they are made. Every tensor lies in a storage, of its own or of the operand that it is
a view of (layouts.py); a storage is held until the last tensor in it was used. The
program lets go of a tensor after the last node that uses it, of its inputs and outputs
when it returns.

State is held all the time: parameters where the optimizer holds them (a second copy
where they are stored otherwise), its moments, buffers. After the program, gradients
are handed over, clipped, and the optimizer steps.

Microbatches are alike in what they hold: one of them is gone through, with all that
they add up to there from the start. What completes that comes behind, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.cost.boxing_memory import Link, links
from partita.compiler.cost.layouts import (
    Laid,
    Strides,
    in_order,
    is_in_order,
    lay_out,
)
from partita.compiler.cost.optimizer_memory import (
    state_sizes,
    sum_bytes,
    update_bytes,
)
from partita.compiler.cost.step import Step
from partita.compiler.cost.timeline import Category, Held, Timeline
from partita.compiler.cost.unlike_ranks import steps_of, unlike_ranks
from partita.compiler.cost.workspace import LocalCall, workspace_bytes
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Boxing, Document, Node, Ref
from partita.compiler.plan.emitted import (
    Unit,
    completing,
    emitted_units,
    inside_groups,
)
from partita.compiler.plan.uses import boxings_by_use, type_of

END_OF_MICROBATCH = "end of the microbatch"
GIVE_GRADIENTS = "give gradients"
CLIP_GRADIENTS = "clip gradients"
OPTIMIZER_STEP = "optimizer step"

CUDA_BLOCK = 512
"""Bytes that CUDA's caching allocator rounds up to (c10/cuda/CUDACachingAllocator)."""

_ENTERING = {
    InputKind.PARAMETER: Category.PARAMETERS,
    InputKind.SHARED: Category.PARAMETERS,
    InputKind.INPUT: Category.INPUTS,
    InputKind.RECEIVED_FORWARD: Category.TEMPORARIES,
    InputKind.RECEIVED_BACKWARD: Category.TEMPORARIES,
}

_ADDED = {
    OutputKind.GRADIENT: Category.GRADIENTS,
    OutputKind.SHARED_GRADIENT: Category.GRADIENTS,
    OutputKind.LOSS: Category.TEMPORARIES,
}


def timeline(document: Document) -> Timeline:
    """Return the memory over a step of the rank that needs most."""
    found = (
        timeline_at(document, coordinates) for coordinates in unlike_ranks(document)
    )
    return max(found, key=lambda step: step.peak_bytes)


def timeline_at(document: Document, coordinates: tuple[int, ...]) -> Timeline:
    """Return the memory over a step of the rank at ``coordinates``."""
    return _Recorder(document, coordinates).run()


@dataclass
class _Storage:
    """Memory that tensors lie in; ``last`` grows with their uses.

    ``is_saved`` once the backward uses what the forward made.
    """

    key: str
    num_bytes: int
    first: int
    last: int
    category: Category
    is_saved: bool = False


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One rank's tensor: its local type and how it lies in which storage."""

    type: TensorType
    strides: Strides
    storage: _Storage


@dataclass(frozen=True, slots=True)
class _Made:
    """What one rank's call makes: local types, how they lie, what the kernel takes."""

    results: tuple[TensorType | None, ...]
    laid_out: tuple[Laid | None, ...]
    workspace_bytes: int


class _Recorder:
    def __init__(self, document: Document, coordinates: tuple[int, ...]) -> None:
        self.document = document
        self.mesh = document.mesh
        self.coordinates = coordinates
        self.device = str(document.hardware["device"]["kind"])
        self.boxings = boxings_by_use(document)
        self.boxed = {consumer for consumer, _, _ in self.boxings}
        self.inside = inside_groups(document)
        self.moments: list[str] = []
        self.is_forward: list[bool] = []
        self.storages: list[_Storage] = []
        self.tensors: dict[Ref | str, _Tensor] = {}
        self.known: dict[object, _Made] = {}  # calls of equal layers are alike
        self.moved: dict[object, tuple[Link, ...]] = {}  # and so are their boxings
        self.updated: list[int] = []  # bytes of what the optimizer works on
        self.completing = completing(document)
        self.added: dict[Ref | str, _Tensor] = {}  # what microbatches add up to

    def run(self) -> Timeline:
        self._enter()
        if self.document.microbatches > 1:
            self._add_up()
        for unit in emitted_units(self.document):
            for item in unit:
                if isinstance(item, Boxing):
                    self._boxing(item)
                else:
                    self._call(item, unit)
        if self.document.microbatches > 1:
            self._complete()
        self._leave()
        held = tuple(self._held(s) for s in self.storages if s.num_bytes)
        return Timeline(tuple(self.moments), held)

    # --- moments and memory

    @property
    def now(self) -> int:
        return len(self.moments) - 1

    def _moment(self, name: str, phase: Phase) -> None:
        self.moments.append(name)
        self.is_forward.append(phase is Phase.FORWARD)

    def _hold(self, key: str, num_bytes: int, category: Category) -> _Storage:
        """Return new memory."""
        now, num_bytes = self.now, self._rounded(num_bytes)
        storage = _Storage(key, num_bytes, now, now, category)
        self.storages.append(storage)
        return storage

    def _local(self, type_: TensorType, placement: Placement) -> TensorType:
        shape = shard_shape(type_.shape, placement, self.mesh, self.coordinates)
        return TensorType(shape, type_.dtype)

    def _seen(self, consumer: str, ref: Ref, wanted: Placement) -> _Tensor:
        """Return a tensor as its consumer sees it."""
        boxing = self.boxings.get((consumer, ref, wanted))
        return self.tensors[ref if boxing is None else boxing.key]

    def _use(self, storage: _Storage) -> None:
        """Hold memory until now, since what runs now uses it."""
        now = storage.last = self.now
        if self.is_forward[storage.first] and not self.is_forward[now]:
            storage.is_saved = True

    def _held(self, storage: _Storage) -> Held:
        category = storage.category
        if storage.is_saved and category in (Category.TEMPORARIES, Category.BOXING):
            category = Category.SAVED
        first, last = storage.first, storage.last
        return Held(storage.key, category, storage.num_bytes, first, last)

    # --- the parts of a step

    def _enter(self) -> None:
        """Hold what is there when a step begins."""
        self._moment("start", Phase.FORWARD)
        for key in self.document.order:
            node = self.document.nodes[key]
            if node.role is None:
                continue
            ref = Ref(key)
            type_, placement = type_of(self.document, ref), node.signature.results[0]
            assert placement is not None
            local = self._local(type_, placement)
            category = _ENTERING.get(node.role.kind, Category.BUFFERS)
            storage = self._hold(node.role.name, local.num_bytes, category)
            self.tensors[ref] = _Tensor(local, in_order(local).strides, storage)
            if node.role.kind is InputKind.PARAMETER:
                self._hold_update(node.role.name, placement)

    def _hold_update(self, name: str, stored: Placement) -> None:
        """Hold what the optimizer has of a parameter."""
        parameter = self.document.parameters[name]
        held = parameter.placements.optimizer
        if held is None:
            return
        num_bytes = self._local(parameter.type, held).num_bytes
        if held != stored:
            self._hold(name, num_bytes, Category.PARAMETERS)
        self.updated.append(num_bytes)
        optimizer, size = self.document.options.optimizer, parameter.dtype.itemsize
        whole = self._local(parameter.type, stored).num_bytes
        sizes = state_sizes(optimizer, num_bytes, size)
        for kept in (*sizes, sum_bytes(optimizer, whole, size)):
            self._hold(name, kept, Category.OPTIMIZER)

    def _call(self, key: str, unit: Unit) -> None:
        node = self.document.nodes[key]
        if key == unit[0]:
            more = f" and {len(unit) - 1} more" if len(unit) > 1 else ""
            self._moment(key + more, node.phase)
        operands = [self.tensors[ref] for ref in node.operands]
        if key in self.boxed:
            wanted = zip(node.operands, node.signature.operands, strict=True)
            operands = [self._seen(key, ref, placement) for ref, placement in wanted]
        for operand in operands:
            self._use(operand.storage)
        made = self._made(node, tuple([(x.type, x.strides) for x in operands]))
        for index, (type_, laid) in enumerate(
            zip(made.results, made.laid_out, strict=True)
        ):
            if type_ is None or laid is None:
                continue
            ref = Ref(key, index)
            if laid.operand is not None:
                storage = operands[laid.operand].storage
            else:
                num_bytes = 0 if ref in self.inside else laid.num_bytes
                storage = self._hold(str(ref), num_bytes, Category.TEMPORARIES)
            self.tensors[ref] = _Tensor(type_, laid.strides, storage)
        if made.workspace_bytes:
            self._hold(key, made.workspace_bytes, Category.WORKSPACE)

    def _made(self, node: Node, given: tuple[tuple[TensorType, Strides], ...]) -> _Made:
        """Return what one rank's call makes of operands that lie so; alike, known."""
        placements = node.signature.results
        key = node.op, node.constants, node.types, placements, given
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._make(node, given)
        return found

    def _make(self, node: Node, given: tuple[tuple[TensorType, Strides], ...]) -> _Made:
        results = tuple(
            None if t is None or placement is None else self._local(t, placement)
            for t, placement in zip(node.types, node.signature.results, strict=True)
        )
        made = [type_ for type_ in results if type_ is not None]
        seen = [(type_, is_in_order(type_, strides)) for type_, strides in given]
        return _Made(
            results,
            lay_out(node.op, node.constants, given, results),
            workspace_bytes(LocalCall(node.op, seen, made, self.device)),
        )

    def _add_up(self) -> None:
        """Hold zeros for what the microbatches will add to them, each made once."""
        late = {boxing.key for boxing in self.completing}
        for output in self.document.outputs:
            if output.value is None or output.placement is None:
                continue
            asks = str(output), output.value, output.placement
            boxing = self.boxings.get(asks)
            made: Ref | str = output.value
            placement = output.placement
            if boxing is not None:
                made = output.value if boxing.key in late else boxing.key
                placement = boxing.source if boxing.key in late else boxing.target
            if output.kind.adds_up and made not in self.added:
                local = self._local(type_of(self.document, output.value), placement)
                category = _ADDED[output.kind]
                storage = self._hold(str(output), local.num_bytes, category)
                self.added[made] = _Tensor(local, in_order(local).strides, storage)

    def _complete(self) -> None:
        """End the microbatch; bring what was added up to where it leaves."""
        self._moment(END_OF_MICROBATCH, Phase.UPDATE)
        for output in self.document.outputs:
            if output.value is not None and output.placement is not None:
                if not output.kind.adds_up:
                    tensor = self._seen(str(output), output.value, output.placement)
                    tensor.storage.last = self.now
        for storage in self.storages:
            if storage.category is Category.INPUTS:
                storage.last = self.now
        for tensor in self.added.values():
            tensor.storage.last = self.now
        self.tensors |= self.added
        for boxing in self.completing:
            self._boxing(boxing)
            self._use(self.tensors[boxing.ref].storage)

    def _boxing(self, boxing: Boxing) -> None:
        first = self.document.nodes.get(boxing.consumers[0])
        phase = (first or self.document.nodes[boxing.producer]).phase
        type_ = type_of(self.document, boxing.ref)
        tensor = self.tensors[boxing.ref]
        for step in steps_of(self.document, boxing):
            local = self._local(type_, step.after)
            storage, axis = tensor.storage, self.mesh.names[step.axis]
            for link in self._links(type_, step, tensor):
                self._moment(f"{boxing.key}: {link.name} {axis}", phase)
                self._use(storage)
                storage = self._hold(boxing.key, link.num_bytes, Category.BOXING)
                if link.workspace_bytes:
                    workspace = link.workspace_bytes
                    self._hold(boxing.key, workspace, Category.WORKSPACE)
            if storage is not tensor.storage or local != tensor.type:
                tensor = _Tensor(local, in_order(local).strides, storage)
        self.tensors[boxing.key] = tensor

    def _links(
        self, type_: TensorType, step: Step, tensor: _Tensor
    ) -> tuple[Link, ...]:
        """Return what one step of a boxing allocates."""
        lies_in_order = is_in_order(tensor.type, tensor.strides)
        key = type_, step, lies_in_order
        found = self.moved.get(key)
        if found is None:
            found = self.moved[key] = links(
                type_,
                step,
                self.mesh,
                self.coordinates,
                in_order=lies_in_order,
                device=self.device,
            )
        return found

    def _leave(self) -> None:
        """Hand over what leaves the program; let the optimizer step."""
        state = (Category.PARAMETERS, Category.OPTIMIZER, Category.BUFFERS)
        kept = [storage for storage in self.storages if storage.category in state]
        inputs = [s for s in self.storages if s.category is Category.INPUTS]
        is_one = self.document.microbatches == 1
        taken = {id(storage) for storage in (*kept, *inputs)}
        self._moment(GIVE_GRADIENTS, Phase.UPDATE)
        for output in self.document.outputs:
            if output.value is None or output.placement is None:
                continue
            if not (is_one or output.kind.adds_up):
                continue  # it was let go of with its microbatch
            tensor = self._seen(str(output), output.value, output.placement)
            tensor.storage.last = self.now
            if output.kind is OutputKind.GRADIENT:
                storage = self._own(output.name, tensor, taken)
                taken.add(id(storage))
                kept.append(storage)
            elif output.kind is OutputKind.LOSS:
                kept.append(tensor.storage)
        for storage in inputs if is_one else ():
            storage.last = self.now
        if self.updated:
            self._moment(CLIP_GRADIENTS, Phase.UPDATE)
            self._moment(OPTIMIZER_STEP, Phase.UPDATE)
            optimizer = self.document.options.optimizer
            workspace = update_bytes(optimizer, self.updated, self.device)
            self._hold(OPTIMIZER_STEP, workspace, Category.WORKSPACE)
        for storage in kept:
            storage.last = self.now

    def _own(self, name: str, tensor: _Tensor, taken: set[int]) -> _Storage:
        """Return the memory of a gradient: a copy where it has none of its own.

        What may not be written to is copied: see runtime/gradients.py.
        """
        storage = tensor.storage
        is_whole = storage.num_bytes == self._rounded(tensor.type.num_bytes)
        is_like = is_in_order(tensor.type, tensor.strides)
        if is_whole and is_like and id(storage) not in taken:
            storage.category = Category.GRADIENTS
            return storage
        return self._hold(name, tensor.type.num_bytes, Category.GRADIENTS)

    def _rounded(self, num_bytes: int) -> int:
        """Return what the device's allocator takes for so many bytes."""
        block = CUDA_BLOCK if self.device == "cuda" else 1
        return -(-num_bytes // block) * block
