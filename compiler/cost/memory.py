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

from collections import deque
from collections.abc import Sequence
from functools import cached_property

from partita.compiler.cost.bucket_memory import Moment
from partita.compiler.cost.optimizer_memory import (
    state_sizes,
    sum_bytes,
    update_bytes,
)
from partita.compiler.cost.recipes import Name, Recipes
from partita.compiler.cost.storage import Carried, Storage, Tensor
from partita.compiler.cost.timeline import Category, Held, Timeline
from partita.compiler.cost.unlike_ranks import unlike_ranks
from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Boxing, Document, Output, Ref
from partita.compiler.plan.emitted import (
    completing,
    completing_units,
)
from partita.compiler.plan.turns import Half, Turn, turns_of
from partita.compiler.plan.uses import handed_over, type_of

END_OF_MICROBATCH = "end of the microbatch"
GIVE_GRADIENTS = "give gradients"
CLIP_GRADIENTS = "clip gradients"
OPTIMIZER_STEP = "optimizer step"

_ENTERING = {
    InputKind.PARAMETER: Category.PARAMETERS,
    InputKind.SHARED: Category.PARAMETERS,
    InputKind.INPUT: Category.INPUTS,
    InputKind.RECEIVED_FORWARD: Category.TEMPORARIES,
    InputKind.RECEIVED_BACKWARD: Category.TEMPORARIES,
}

_STATE = (Category.PARAMETERS, Category.OPTIMIZER, Category.BUFFERS)

_ADDED = {
    OutputKind.GRADIENT: Category.GRADIENTS,
    OutputKind.SHARED_GRADIENT: Category.GRADIENTS,
    OutputKind.LOSS: Category.TEMPORARIES,
}


def timeline(document: Document) -> Timeline:
    """Return the memory over a step of the rank that needs most."""
    return StepMemory(document).timeline(document, turns_of(document))


def timeline_at(document: Document, coordinates: tuple[int, ...]) -> Timeline:
    """Return the memory over a step of the rank at ``coordinates``."""
    recipes = Recipes(document, coordinates)
    return _Recorder(document, recipes).run(turns_of(document))


class StepMemory:
    """The memory of a plan's step, in whatever turns and buckets."""

    def __init__(self, document: Document) -> None:
        self._document = document

    @cached_property
    def _ranks(self) -> list[Recipes]:
        """The recipes of each rank that holds unlike the others."""
        document = self._document
        return [Recipes(document, at) for at in unlike_ranks(document)]

    def timeline(self, document: Document, turns: Sequence[Turn]) -> Timeline:
        """Return the memory over a step of the rank that needs most.

        Args:
            document: differs from the plan that this is of in turns and buckets alone.
            turns: those of ``turns_of``.
        """
        found = (_Recorder(document, recipes).run(turns) for recipes in self._ranks)
        return max(found, key=lambda step: step.peak_bytes)


class _Recorder:
    def __init__(self, document: Document, recipes: Recipes) -> None:
        self.document = document
        self.recipes = recipes
        self.rank = recipes.rank
        self.now = -1
        self.moments: list[str] = []
        self.is_forward: list[bool] = []
        self.storages: list[Storage] = []
        self.entered: list[Storage] = []  # what is there when a step begins
        self.tensors: dict[Name, Tensor] = {}
        self.under_way: dict[str, Carried] = {}
        self.sent: list[Storage] = []  # what messages bring
        self.messages: dict[str, int] = {}  # bytes of what comes of them, by boxing
        self.updated: list[int] = []  # bytes of what the optimizer works on
        self.added: dict[Name, Tensor] = {}  # what microbatches add up to

    def run(self, turns: Sequence[Turn]) -> Timeline:
        self._enter()
        self.entered = [*self.storages]
        if self.document.microbatches > 1:
            self._add_up()
        for unit, half in turns:
            first = unit[0]
            if not isinstance(first, str):  # no call shares a unit with a boxing
                self._boxings([item for item in unit if isinstance(item, Boxing)], half)
                continue
            more = f" and {len(unit) - 1} more" if len(unit) > 1 else ""
            self._moment(first + more, self.document.nodes[first].phase)
            for item in unit:
                assert isinstance(item, str)
                self._call(item, len(unit) > 1)
        if self.document.microbatches > 1:
            self._complete()
        self._leave()
        held = tuple(self._held(s) for s in self.storages if s.num_bytes)
        return Timeline(tuple(self.moments), held, self.messages)

    # --- moments and memory

    def _moment(self, name: str, phase: Phase) -> None:
        self.now += 1
        self.moments.append(name)
        self.is_forward.append(phase is Phase.FORWARD)

    def _hold(self, key: str, num_bytes: int, category: Category) -> Storage:
        """Return new memory, as much as the device's allocator takes for it."""
        return self._keep(key, self.rank.rounded(num_bytes), category)

    def _keep(self, key: str, rounded_bytes: int, category: Category) -> Storage:
        storage = Storage(key, rounded_bytes, self.now, self.now, category)
        self.storages.append(storage)
        return storage

    def _seen(self, output: Output) -> Name:
        """Return the name of a tensor as it leaves."""
        assert output.value is not None
        assert output.placement is not None
        return self.recipes.seen(str(output), output.value, output.placement)

    def _use(self, storage: Storage, *, waits: bool = True) -> None:
        """Hold memory until now, since what runs now uses it.

        A view does not wait for what is in it (passes/sink_waits.py).
        """
        if waits and storage.until_used:
            storage.land(self.now)
        now = storage.last = self.now
        if self.is_forward[storage.first] and not self.is_forward[now]:
            storage.is_saved = True

    def _end_messages(self) -> None:
        """Let go of what is held for messages: a program waits for all of them."""
        for storage in self.sent:
            storage.land(self.now)

    def _held(self, storage: Storage) -> Held:
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
            local = self.rank.type(type_, placement)
            category = _ENTERING.get(node.role.kind, Category.BUFFERS)
            storage = self._hold(node.role.name, local.num_bytes, category)
            tensor = Tensor(self.rank.shard(local), storage)
            self.tensors[ref] = tensor
            if node.role.kind is InputKind.PARAMETER:
                self._hold_update(node.role.name, placement)

    def _hold_update(self, name: str, stored: Placement) -> None:
        """Hold what the optimizer has of a parameter."""
        parameter = self.document.parameters[name]
        held = parameter.placements.optimizer
        if held is None:
            return
        num_bytes = self.rank.type(parameter.type, held).num_bytes
        if held != stored:
            self._hold(name, num_bytes, Category.PARAMETERS)
        self.updated.append(num_bytes)
        optimizer, size = self.document.options.optimizer, parameter.dtype.itemsize
        whole = self.rank.type(parameter.type, stored).num_bytes
        sizes = state_sizes(optimizer, num_bytes, size)
        for kept in (*sizes, sum_bytes(optimizer, whole, size)):
            self._hold(name, kept, Category.OPTIMIZER)

    def _call(self, key: str, is_fused: bool) -> None:
        tensors = self.tensors
        call = self.recipes.call(key, is_fused, tensors)
        operands = [tensors[name].storage for name in call.operands]
        for storage in operands:
            self._use(storage, waits=call.waits)
        for position, shard, num_bytes, operand in call.results:
            if operand is not None:
                storage = operands[operand]
            else:
                name = str(Ref(key, position))
                storage = self._keep(name, num_bytes, Category.TEMPORARIES)
            tensors[key, position] = Tensor(shard, storage)
        if call.workspace_bytes:
            self._keep(key, call.workspace_bytes, Category.WORKSPACE)

    def _add_up(self) -> None:
        """Hold zeros for what the microbatches will add to them, each made once."""
        late = {boxing.key for boxing in completing(self.document)}
        for output in self.document.outputs:
            if output.value is None or output.placement is None:
                continue
            asks = str(output), output.value, output.placement
            boxing = self.recipes.boxing(*asks)
            made: Ref | str = output.value
            placement = output.placement
            if boxing is not None:
                made = output.value if boxing.key in late else boxing.key
                placement = boxing.source if boxing.key in late else boxing.target
            if output.kind.adds_up and made not in self.added:
                local = self.rank.type(type_of(self.document, output.value), placement)
                category = _ADDED[output.kind]
                storage = self._hold(str(output), local.num_bytes, category)
                self.added[made] = Tensor(self.rank.shard(local), storage)

    def _complete(self) -> None:
        """End the microbatch; bring what was added up to where it leaves."""
        self._moment(END_OF_MICROBATCH, Phase.UPDATE)
        self._end_messages()
        for output in handed_over(self.document):
            if output.value is not None and output.placement is not None:
                if not output.kind.adds_up:
                    self.tensors[self._seen(output)].storage.last = self.now
        for storage in self.entered:
            if storage.category is Category.INPUTS:
                storage.last = self.now
        for tensor in self.added.values():
            tensor.storage.last = self.now
        self.tensors |= self.added
        for unit in completing_units(self.document):
            self._boxings(unit)
            for boxing in unit:
                self._use(self.tensors[boxing.ref].storage)
                self.tensors[boxing.key].storage.land(self.now)

    def _boxings(self, boxings: Sequence[Boxing], half: Half = Half.BOTH) -> None:
        """Carry out a boxing, or those of a bucket together, or half of that."""
        key = boxings[0].key
        recipe = self.recipes.boxings(boxings, self.tensors)
        carried = self.under_way.pop(key, None)
        if carried is None:
            storages = [self.tensors[name].storage for name in recipe.operands]
            carried = Carried(key, recipe.phase, deque(recipe.moments), storages)
        for storage in carried.held:  # until what it is in was waited for
            self._use(storage)
        num = len(carried.moments)
        if half is Half.FIRST:
            self.under_way[key] = carried
            messages = (i for i, m in enumerate(carried.moments) if m.is_message)
            num = max(messages, default=-1) + 1
        for _ in range(num):
            self._allocate(carried, carried.moments.popleft())
        if half is not Half.FIRST:
            made = zip(recipe.results, recipe.shards, carried.storages, strict=True)
            for name, shard, storage in made:
                self.tensors[name] = Tensor(shard, storage)

    def _allocate(self, carried: Carried, moment: Moment) -> None:
        """Hold what a moment of a boxing makes, and what it makes that of."""
        key, storages = carried.key, carried.storages
        self._moment(f"{key}: {moment.name}", carried.phase)
        carried.held = [storages[member] for member in moment.members]
        for storage in carried.held:
            self._use(storage)
        num_bytes = self.rank.rounded(moment.num_bytes)
        made = self._keep(key, num_bytes, Category.BOXING)
        for member in moment.members:
            storages[member] = made
        if moment.workspace_bytes:
            workspace = self._hold(key, moment.workspace_bytes, Category.WORKSPACE)
            carried.held.append(workspace)
        if moment.until_used:
            self.sent.append(made)
            made.until_used = tuple({id(each): each for each in carried.held}.values())
        if moment.is_message:
            sent = (num_bytes, *(each.num_bytes for each in made.until_used))
            self.messages[key] = self.messages.get(key, 0) + sum(sent)
        carried.held.append(made)

    def _leave(self) -> None:
        """Hand over what leaves the program; let the optimizer step."""
        kept = [s for s in self.entered if s.category in _STATE]
        inputs = [s for s in self.entered if s.category is Category.INPUTS]
        is_one = self.document.microbatches == 1
        taken = {id(storage) for storage in (*kept, *inputs)}
        shared = self._shared(taken)
        self._moment(GIVE_GRADIENTS, Phase.UPDATE)
        self._end_messages()
        for output in handed_over(self.document):
            if output.value is None or output.placement is None:
                continue
            if not (is_one or output.kind.adds_up):
                continue  # it was let go of with its microbatch
            seen = self._seen(output)
            self.tensors[seen].storage.last = self.now
            if output.kind is OutputKind.GRADIENT:
                storage = self._own(output.name, seen, taken, shared)
                taken.add(id(storage))
                kept.append(storage)
            elif output.kind is OutputKind.LOSS:
                kept.append(self.tensors[seen].storage)
        for storage in inputs if is_one else ():
            storage.last = self.now
        if self.updated:
            self._moment(CLIP_GRADIENTS, Phase.UPDATE)
            self._moment(OPTIMIZER_STEP, Phase.UPDATE)
            optimizer = self.document.options.optimizer
            workspace = update_bytes(optimizer, self.updated, self.rank.device)
            self._hold(OPTIMIZER_STEP, workspace, Category.WORKSPACE)
        for storage in kept:
            storage.last = self.now

    def _own(
        self,
        name: str,
        seen: Name,
        taken: set[int],
        shared: dict[int, set[Name]],
    ) -> Storage:
        """Return the memory of a gradient: a copy where it has none of its own.

        What may not be written to is copied: see runtime/gradients.py. ``shared`` has,
        by the storage, the tensors that share it and that no gradient is yet.
        """
        tensor = self.tensors[seen]
        storage, is_like = tensor.storage, tensor.shard.is_in_order
        is_whole = storage.num_bytes == self.rank.rounded(tensor.shard.type.num_bytes)
        parts = shared.get(id(storage), set())
        if is_like and seen in parts:
            parts.discard(seen)
        elif not (is_whole and is_like) or id(storage) in taken:
            return self._hold(name, tensor.shard.type.num_bytes, Category.GRADIENTS)
        storage.category = Category.GRADIENTS
        return storage

    def _shared(self, taken: set[int]) -> dict[int, set[Name]]:
        """Return the storages that several gradients fill, and which tensors do."""
        found: dict[int, dict[Name, int]] = {}
        sizes: dict[int, int] = {}
        for output in self.document.outputs:
            if output.kind is OutputKind.GRADIENT and output.value and output.placement:
                seen = self._seen(output)
                tensor = self.tensors[seen]
                key = id(tensor.storage)
                sizes[key] = tensor.storage.num_bytes
                parts = found.setdefault(key, {})
                parts[seen] = tensor.shard.type.num_bytes
        return {
            key: set(parts)
            for key, parts in found.items()
            if key not in taken
            and len(parts) > 1
            and self.rank.rounded(sum(parts.values())) == sizes[key]
        }
