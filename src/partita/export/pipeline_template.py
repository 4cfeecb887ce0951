"""The parts of an exported Python program that pipelines have beside the others."""

OF_STAGES = """
STAGES says what each stage of the pipeline is and has, ROWS what its ranks do in a
step, in that order (``0F1``: the forward of stage 0 on microbatch 1; ``B``, its
backward; ``I`` and ``W``, that in two, of what it was handed and of the parameters),
WIRES what stages hand each other. A message goes from a rank to a rank: pairs of
regions, of the sender's part and of the receiver's, each from where to where by dim.
"""

START = """\
        self._make_ways()
"""

PIPELINE = r'''
    PARTS = {"F": 0, "B": 1, "I": 1, "W": 2}
    SENDS = {"SEND_F": "forward", "SEND_B": "backward"}
    TAKES = {"RECV_F": "forward", "RECV_B": "backward"}

    def _make_ways(self):
        """Make a group for each way that tensors go: in each they keep one order."""
        row, *_ = {STAGES[number]["row"] for number in self.stages}
        known = re.compile(r"(\d+)([A-Z_]+)(\d*)")
        parts = [known.fullmatch(action).groups() for action in ROWS[row].split()]
        self.actions = [(int(stage), work, int(n or 0)) for stage, work, n in parts]
        self.arrived = ARRIVED[row]
        ways = {}
        for wire in WIRES:
            ends = wire["sender"], wire["receiver"]
            ranks = {rank for end in ends for rank in STAGES[end]["ranks"]}
            way = wire["kind"], *ends
            if way not in ways:
                ways[way] = dist.new_group(sorted(ranks))
            wire["group"] = ways[way]
            wire["within"] = len({STAGES[end]["row"] for end in ends}) == 1

    def _run(self, batch):
        self.under_way, self.asked = {}, {}
        self._share_state()
        for position, (stage, work, number) in enumerate(self.actions):
            self._ask_ahead(position)
            if work in self.PARTS:
                self._compute(stage, self.PARTS[work], number, batch)
                self._hand_over(stage, number)
            elif work in self.SENDS:
                self.under_way[f"{stage}{work}{number}"] = [
                    pair
                    for wire in self._wires(self.SENDS[work], "sender", stage)
                    for pair in self._send_made(wire, number)
                ]
            elif work in self.TAKES:
                held = self.held.setdefault((stage, number), {})
                for wire in self._wires(self.TAKES[work], "receiver", stage):
                    asked = self.asked.pop((wire["number"], number))
                    held[wire["enters"]] = self._arrived(wire, asked)
            for sent in self.arrived.get(f"{stage}{work}{number}", ()):
                wait(self.under_way.pop(sent))
        # Reductions and what else ends a step follow the last microbatch.
        for pairs in self.under_way.values():
            wait(pairs)
        left = {n: s.complete(self.sums[n]) for n, s in self.stages.items()}
        self._bring_home(left)
        every = {key: x for own in left.values() for key, x in own.items()}
        return every if LOSS is None else every | self._told(every)

    def _told(self, left):
        """Return the loss, which one stage makes, on every rank."""
        rank, dtype = LOSS
        loss = left.get(("loss", "loss"))
        if loss is None:
            loss = torch.empty((), dtype=dtype, device=self.device)
        dist.broadcast(loss, rank)
        return {("loss", "loss"): loss}

    def _ask_ahead(self, position):
        """Ask for what the next action that receives waits for, while others run."""
        for stage, work, number in self.actions[position:]:
            if work in self.TAKES:
                for wire in self._wires(self.TAKES[work], "receiver", stage):
                    if (wire["number"], number) not in self.asked:
                        self.asked[wire["number"], number] = self._ask(wire, number)
                return

    def _wires(self, kind, end, stage):
        """Return the wires between ranks that begin or end at a stage."""
        return [
            wire
            for wire in WIRES
            if (wire["kind"], wire[end], wire["within"]) == (kind, stage, False)
        ]

    def _share_state(self):
        """Hand over parameters and buffers of one stage that others use too."""
        under_way = []
        for wire in (w for w in WIRES if w["kind"] == "state"):
            sender, receiver = wire["sender"], wire["receiver"]
            value = None
            if sender in self.stages:
                value = self.state[sender][wire["leaves"]]
                under_way += self._send(wire, value)
            if receiver in self.stages:
                got = self._arrived(wire, self._ask(wire), value)
                self.state[receiver][wire["enters"]] = got
        wait(under_way)

    def _hand_over(self, stage, number):
        """Give what a stage made to stages on the same ranks."""
        for wire in WIRES:
            made = wire["leaves"], number
            if wire["within"] and wire["sender"] == stage and made in self.sent:
                value = self.sent.pop(made)
                under_way = self._send(wire, value, number)
                held = self.held.setdefault((wire["receiver"], number), {})
                asked = self._ask(wire, number)
                held[wire["enters"]] = self._arrived(wire, asked, value)
                wait(under_way)

    def _bring_home(self, left):
        """Add a stage's part of a tied gradient to that of the parameter's home."""
        for wire in (w for w in WIRES if w["kind"] == "gradient"):
            value, under_way = None, []
            if wire["sender"] in left:
                value = left[wire["sender"]].pop(wire["leaves"])
                under_way = self._send(wire, value)
            if wire["receiver"] in left:
                home = left[wire["receiver"]]
                got = self._arrived(wire, self._ask(wire), value)
                home[wire["enters"]] = home[wire["enters"]] + got
            wait(under_way)

    def _send_made(self, wire, number):
        return self._send(wire, self.sent.pop((wire["leaves"], number)), number)

    def _send(self, wire, value, number=0):
        """Begin to send the regions that other ranks take; return what to wait for."""
        under_way, rank = [], dist.get_rank()
        for sender, receiver, regions in wire["messages"]:
            if sender == rank != receiver:
                flat = torch.cat([value[block(r)].reshape(-1) for r, _ in regions])
                tag = wire["number"] * MICROBATCHES + number
                raw = flat.view(torch.uint8)  # which every backend can send
                work = dist.isend(raw, receiver, group=wire["group"], tag=tag)
                under_way.append((work, flat))
        return under_way

    def _ask(self, wire, number=0):
        """Begin to receive; return this rank's part, still empty, and what comes."""
        coming, rank = [], dist.get_rank()
        shape, dtype = wire["shapes"][rank], wire["dtype"]
        value = torch.empty(shape, dtype=dtype, device=self.device)
        for sender, receiver, regions in wire["messages"]:
            if receiver == rank != sender:
                parts = [value[block(put)] for _, put in regions]
                flat = value.new_empty(sum(part.numel() for part in parts))
                tag = wire["number"] * MICROBATCHES + number
                raw = flat.view(torch.uint8)
                work = dist.irecv(raw, sender, group=wire["group"], tag=tag)
                coming.append((work, flat, parts))
        return value, coming

    def _arrived(self, wire, asked, held=None):
        """Return what was asked for, with what this rank held of it itself."""
        value, coming = asked
        for sender, receiver, regions in wire["messages"]:
            if sender == receiver == dist.get_rank():
                for taken, put in regions:
                    value[block(put)] = held[block(taken)]
        for work, flat, parts in coming:
            work.wait()
            pieces = flat.split([part.numel() for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                part.copy_(piece.view(part.shape))
        return value


def block(region):
    """Return the slices of a region, which says of every dim from where to where."""
    return tuple(slice(*ends) for ends in region)


def wait(under_way):
    """Wait until tensors have gone; they are kept until then."""
    for work, _ in under_way:
        work.wait()
'''
