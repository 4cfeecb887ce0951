"""One step of a pipeline on this rank: the actions of its row, one after another.

Actions run in the order of the schedule. What comes from other ranks is asked for while
the action before it still runs, and what is sent goes while this rank computes on.
Gradients add up here over the microbatches and are completed once: behind the last
backward of a stage, while stages before it still go backward; in the first stage as
that makes them whole (passes/reduce_beside.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from partita.compiler.ir.program import InputKind, OutputKind, OutputRole
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.plan.wires import RECEIVES, SENDS
from partita.compiler.schedules.schedule import Action, Work
from partita.runtime.doing import telling
from partita.runtime.executor import Executable, Outputs
from partita.runtime.feeds import FeedKey, Feeds, FeedsOf
from partita.runtime.finishing import Finishing
from partita.runtime.link import Link
from partita.runtime.stage_parts import StageParts
from partita.runtime.storages import storages
from partita.runtime.transfer import Pending, Sending


@dataclass(frozen=True)
class Row:
    """What a rank does in every step.

    Attributes:
        name: of the schedule.
        num_microbatches: into which the batch is cut.
        actions: in their order.
        closing: those with which the gradients of a stage are whole.
        released: by an action, the sends that are known to have come when it is done.
        stages: those that the rank has a share of.
        links: the wires that end or begin on it, by their numbers.
        device: where tensors are.
    """

    name: str
    num_microbatches: int
    actions: tuple[Action, ...]
    closing: frozenset[Action]
    released: Mapping[Action, Sequence[Action]]
    stages: Mapping[int, StageParts]
    links: Sequence[Link]
    device: torch.device


@dataclass
class PipelineStep:
    """A step under way.

    Attributes:
        row: what is to be done.
        feeds_of: what enters each run, but what other stages make.
        sums: what gradients and the loss add up to, by stage.
        reduced: by stage, what its sums became.
        held: what a microbatch has in a stage, besides what every one is fed.
        made: what was made and waits to be sent.
        left: what leaves the forward, by stage and microbatch.
        pending: what was asked for, by link and microbatch.
        sending: what is under way to others, by the action that sent it.
        shared: by stage, its copies of the state of others.
        done: the actions that were run.
    """

    row: Row
    feeds_of: FeedsOf
    sums: dict[int, dict[FeedKey, torch.Tensor]]
    held: dict[tuple[int, int], dict[FeedKey, torch.Tensor | int]] = field(
        default_factory=dict[tuple[int, int], dict[FeedKey, torch.Tensor | int]]
    )
    made: dict[tuple[OutputRole, int], torch.Tensor] = field(
        default_factory=dict[tuple[OutputRole, int], torch.Tensor]
    )
    left: dict[tuple[int, int], Outputs] = field(
        default_factory=dict[tuple[int, int], Outputs]
    )
    pending: dict[tuple[int, int], Pending] = field(
        default_factory=dict[tuple[int, int], Pending]
    )
    sending: dict[Action, list[Sending]] = field(
        default_factory=dict[Action, list[Sending]]
    )
    shared: dict[int, dict[FeedKey, torch.Tensor]] = field(
        default_factory=dict[int, dict[FeedKey, torch.Tensor]]
    )
    reduced: dict[int, dict[OutputRole, torch.Tensor | None]] = field(
        default_factory=dict[int, dict[OutputRole, torch.Tensor | None]]
    )
    done: list[Action] = field(default_factory=list[Action])
    _finishing: dict[int, Finishing] = field(
        default_factory=dict[int, Finishing], init=False
    )

    def go(self) -> None:
        """Run the actions in their order.

        Raises:
            RuntimeError: when another rank is gone; a note says what waited for it.
        """
        with telling() as tell:
            self._share_state()
            for position, action in enumerate(self.row.actions):
                what = f"{action} of schedule {self.row.name!r}"
                tell(what)
                try:
                    self._ask_next(position)
                    self._do(action)
                    for sent in self.row.released.get(action, ()):
                        self._release(sent)
                except RuntimeError as error:
                    error.add_note(f"at {what}")
                    raise
                self.done.append(action)
            for sent in list(self.sending):
                self._release(sent)

    def _release(self, sent: Action) -> None:
        for sending in self.sending.pop(sent, ()):
            sending.wait()

    def ended(self) -> Mapping[int, Outputs]:
        """Return what leaves each stage."""
        found: dict[int, dict[OutputRole, torch.Tensor | None]] = {}
        for number in self.row.stages:
            if number not in self.reduced:  # the table does not say when
                self._reduce(number)
            found[number] = self._last_buffers(number) | self.reduced[number]
        for link in self.row.links:
            if link.wire.kind is TransferKind.GRADIENT:
                self._bring_home(link, found)
        return found

    def _last_buffers(self, stage: int) -> dict[OutputRole, torch.Tensor | None]:
        """Return the buffers that the last microbatch wrote; all write alike."""
        last = self.row.num_microbatches - 1
        kind = OutputKind.MUTATED_BUFFER
        left = self.left[stage, last]
        return {role: value for role, value in left.items() if role.kind is kind}

    def _share_state(self) -> None:
        """Hand over the parameters and buffers of one stage that others use too."""
        sending: list[Sending] = []
        for link in self.row.links:
            if link.wire.kind is not TransferKind.STATE:
                continue
            name, sender = link.wire.transfer.name, link.wire.transfer.sender
            shard: torch.Tensor | None = None
            if sender in self.row.stages:
                shard = _state(self.feeds_of(sender, 0), name)
                sending.append(link.send(shard))
            if link.takes:
                got = link.receive(self.row.device).wait(shard)
                receiver = self.shared.setdefault(link.wire.transfer.receiver, {})
                receiver[link.wire.enters] = got
        for sent in sending:
            sent.wait()

    def _bring_home(
        self, link: Link, found: dict[int, dict[OutputRole, torch.Tensor | None]]
    ) -> None:
        """Add a stage's part of a gradient to what the parameter's home has of it."""
        sender, receiver = link.wire.transfer.sender, link.wire.transfer.receiver
        part: torch.Tensor | None = None
        if sender in found:
            part = found[sender].pop(link.wire.leaves)
            assert part is not None
        sent = None if part is None else link.send(part)
        if receiver in found:
            got = link.receive(self.row.device).wait(part)
            own = found[receiver][link.wire.joins]
            assert own is not None
            found[receiver][link.wire.joins] = own + got
        if sent is not None:
            sent.wait()

    def _ask_next(self, position: int) -> None:
        """Ask for what the next action that receives waits for."""
        rest = self.row.actions[position:]
        action = next((action for action in rest if action.work in RECEIVES), None)
        if action is None:
            return
        number = action.microbatch
        assert number is not None
        for at, link in enumerate(self.row.links):
            if link.is_within or not _is_taken(link, action):
                continue
            if (at, number) not in self.pending:
                self.pending[at, number] = link.receive(self.row.device, number)

    def _do(self, action: Action) -> None:
        if action.microbatch is None:
            if action.work is Work.REDUCE:
                self._reduce(action.stage)
            return  # updates follow all actions
        if action.work in SENDS:
            self._send(action, action.microbatch)
        elif action.work in RECEIVES:
            self._take(action, action.microbatch)
        elif action in self.row.closing and self.row.stages[action.stage].closing:
            self._close(action.stage, action.microbatch)
        else:
            self._compute(action.stage, action.microbatch, action.work.part)

    def _compute(self, stage: int, number: int, part: int) -> None:
        if part == 0:
            entering = {**self.feeds_of(stage, number), **self.shared.get(stage, {})}
            self.held.setdefault((stage, number), {}).update(entering)
            del entering
        own = self.row.stages[stage]
        left = self._run(own.parts[part], own.later[part], stage, number)
        if part == 0:
            self.left[stage, number] = left
        self._hand_over(stage, number)

    def _close(self, stage: int, number: int) -> None:
        """Run the last backward; begin to complete sums as they become whole."""
        closing = self.row.stages[stage].closing
        assert closing is not None
        parts = zip(closing.phases, closing.later, closing.begun, strict=True)
        for phase, later, begun in parts:
            self._run(phase, later, stage, number)
            for each in begun:
                self._finishing_of(stage).begin(each)
        self._hand_over(stage, number)

    def _reduce(self, stage: int) -> None:
        """Bring what added up in a stage to where it leaves."""
        self.reduced[stage] = self._finishing_of(stage).end()

    def _finishing_of(self, stage: int) -> Finishing:
        if stage not in self._finishing:
            own = self.row.stages[stage]
            halves = own.closing.halves if own.closing else {}
            self._finishing[stage] = Finishing(
                own.completing, own.sums, self.sums[stage], halves
            )
        return self._finishing[stage]

    def _run(
        self, part: Executable, later: frozenset[FeedKey], stage: int, number: int
    ) -> dict[OutputRole, torch.Tensor | None]:
        """Run a part of a stage; return what leaves the step there.

        Of what a microbatch has in the stage, that is kept which is needed later.
        """
        own, sums = self.row.stages[stage].sums, self._sums(stage, number)
        feeds = {**self.held[stage, number], **sums}
        given = storages(x for (kind, _), x in feeds.items() if kind is InputKind.INPUT)
        held = {k: v for k, v in self.held[stage, number].items() if k in later}
        self.held[stage, number] = held
        outputs = part.by_role(feeds)
        left: dict[OutputRole, torch.Tensor | None] = {}
        for role, value in outputs.items():
            if role.kind is OutputKind.SAVED:
                assert value is not None
                if (InputKind.SAVED, role.name) in later:
                    held[InputKind.SAVED, role.name] = value
            elif role.kind.is_sent:
                assert value is not None
                self.made[role, number] = value
            elif role in own:
                assert value is not None
                sums[own[role]] = value.clone() if storages([value]) & given else value
            else:
                left[role] = value
        return left

    def _sums(self, stage: int, number: int) -> dict[FeedKey, torch.Tensor]:
        """Return what a microbatch adds to, or leaves where it is the only one."""
        del number  # all of a step add to the same
        return self.sums.get(stage, {})

    def _hand_over(self, stage: int, number: int) -> None:
        """Give what a stage made to stages on the same ranks, which all do so now."""
        for link in self.row.links:
            made = (link.wire.leaves, number)
            if link.is_within and link.sends_from(stage) and made in self.made:
                shard = self.made.pop(made)
                sending = link.send(shard, number)
                pending = link.receive(self.row.device, number)
                held = self.held.setdefault((link.wire.transfer.receiver, number), {})
                held[link.wire.enters] = pending.wait(shard)
                sending.wait()

    def _send(self, action: Action, number: int) -> None:
        """Send what a stage made to other ranks."""
        self.sending[action] = [
            link.send(self.made.pop((link.wire.leaves, number)), number)
            for link in self.row.links
            if link.wire.kind is SENDS[action.work]
            and link.sends_from(action.stage)
            and not link.is_within
        ]

    def _take(self, action: Action, number: int) -> None:
        """Wait for what other ranks send."""
        held = self.held.setdefault((action.stage, number), {})
        for at, link in enumerate(self.row.links):
            if _is_taken(link, action) and not link.is_within:
                held[link.wire.enters] = self.pending.pop((at, number)).wait()


def _is_taken(link: Link, receiving: Action) -> bool:
    """Whether an action waits for what comes over a link."""
    transfer = link.wire.transfer
    kind = RECEIVES[receiving.work]
    return transfer.kind is kind and transfer.receiver == receiving.stage


def _state(feeds: Feeds, name: str) -> torch.Tensor:
    """Return the parameter or buffer of a name."""
    for kind in (InputKind.PARAMETER, InputKind.BUFFER):
        value = feeds.get((kind, name))
        if isinstance(value, torch.Tensor):
            return value
    raise AssertionError(f"the stage has no {name!r}")
