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
        self.actions, self.arrived = ROWS[row].split(), ARRIVED[row]
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
        self.under_way = {}
        self._share_state()
        for action in self.actions:
            stage, work, number = re.fullmatch(r"(\d+)([A-Z_]+)(\d*)", action).groups()
            if work in self.PARTS:
                self._compute(int(stage), self.PARTS[work], int(number), batch)
                self._hand_over(int(stage), int(number))
            elif work in self.SENDS:
                self.under_way[action] = [
                    pair
                    for wire in self._wires(self.SENDS[work], "sender", int(stage))
                    for pair in self._send_made(wire, int(number))
                ]
            elif work in self.TAKES:
                held = self.held.setdefault((int(stage), int(number)), {})
                for wire in self._wires(self.TAKES[work], "receiver", int(stage)):
                    held[wire["enters"]] = self._receive(wire, int(number))
            for sent in self.arrived.get(action, ()):
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
                got = self._receive(wire, held=value)
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
                held[wire["enters"]] = self._receive(wire, number, value)
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
                home[wire["enters"]] = home[wire["enters"]] + self._receive(
                    wire, held=value
                )
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

    def _receive(self, wire, number=0, held=None):
        """Return this rank's part of what others send, and of what it held itself."""
        rank = dist.get_rank()
        shape, dtype = wire["shapes"][rank], wire["dtype"]
        value = torch.empty(shape, dtype=dtype, device=self.device)
        for sender, receiver, regions in wire["messages"]:
            if receiver != rank:
                continue
            if sender == rank:
                for taken, put in regions:
                    value[block(put)] = held[block(taken)]
                continue
            parts = [value[block(put)] for _, put in regions]
            flat = value.new_empty(sum(part.numel() for part in parts))
            tag = wire["number"] * MICROBATCHES + number
            dist.recv(flat.view(torch.uint8), sender, group=wire["group"], tag=tag)
            sizes = [part.numel() for part in parts]
            for part, piece in zip(parts, flat.split(sizes), strict=True):
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
