"""The parts of an exported Python program that are the same for every plan."""

HEAD = '''\
"""What every rank runs, in plain PyTorch.

    torchrun --nproc-per-node {ranks} FILE weights.pt batch.pt [STEPS]

``weights.pt`` holds the model's state dict, ``batch.pt`` a dict with the tensors of one
global batch by their names in STAGES; every rank reads both and keeps its part. Or from
another file: ``model = Model(weights)``, ``loss = model.step(batch)``, and any
elementwise optimizer over ``model.parameters.values()``.

Comments give the types of this rank's tensors and where they live: of every axis of the
mesh ``S(dim)``, cut along a dim; ``B``, whole; ``P``, a part of a sum.
{more}"""

from __future__ import annotations

import base64
import itertools
import sys
import zlib
'''

MODEL_OPS = """\
# Ops of the model's own: import what registers them in front of this.
for op in {ops!r}:
    namespace, name, _ = op.split(".")
    if not hasattr(getattr(torch.ops, namespace), name):
        told = f"torch.ops.{{op}} is not registered: import what registers it"
        raise ImportError(told)
"""

CONSTANT = '''\
def constant(dtype, shape, text):
    """Return a tensor that the model's code makes, from its bytes."""
    raw = bytearray(zlib.decompress(base64.b64decode(text)))
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).clone()
'''

STAGE = '''\
def shard(whole, cuts, sizes, coordinates):
    """Return this rank's part: per axis, a cut is a dim and its segments, or None."""
    runs = [[(0, size)] for size in whole.shape]
    for cut, count, at in zip(cuts, sizes, coordinates, strict=True):
        if isinstance(cut, tuple):
            dim, segments = cut
            ends = list(itertools.accumulate(segments[:-1]))
            parts = []
            for start, stop in runs[dim]:
                inside = [start, *(end for end in ends if start < end < stop), stop]
                for low, high in itertools.pairwise(inside):
                    step = -(-(high - low) // count)
                    first = min(low + at * step, high)
                    parts.append((first, min(first + step, high)))
            runs[dim] = parts
    for dim, parts in enumerate(runs):
        if parts != [(0, whole.shape[dim])]:
            pieces = [whole.narrow(dim, low, high - low) for low, high in parts]
            whole = torch.cat(pieces, dim)
    owes = any(
        cut == "sum" and at > 0 for cut, at in zip(cuts, coordinates, strict=True)
    )
    return torch.zeros_like(whole) if owes else whole.clone()


class Stage:
    """This rank's part of a stage: its parameters and buffers, what it runs."""

    def __init__(self, table, mesh, weights, device):
        self.table, self.device = table, device
        self.groups = {axis: mesh.get_group(axis) for axis in table["axes"]}
        self.coordinates = tuple(mesh.get_coordinate())
        own = table["ranks"].index(dist.get_rank())
        self.program = table["programs"][table["program_of"][own]]
        weights = {**BUFFERS_NOT_SAVED, **weights}
        self.parameters = {
            name: nn.Parameter(self._shard(weights[name], c), name in table["trained"])
            for name, c in table["parameters"].items()
        }
        self.buffers = {
            name: self._shard(weights[name], c)
            for name, c in table["buffers"].items()
        }
        self._constants = {
            name: self._shard(CONSTANTS[name], c)
            for name, c in table["constants"].items()
        }

    def state(self):
        """Return what enters every microbatch: by kind and name, placed for use."""
        held = {("parameter", name): x for name, x in self.parameters.items()}
        held |= {("buffer", name): x for name, x in self.buffers.items()}
        held |= {("constant", name): x for name, x in self._constants.items()}
        for names, bring in self.program["bringing"]:
            brought = self.run(bring, [self.parameters[name] for name in names])
            for name, x in zip(names, brought, strict=True):
                held["parameter", name] = x
        return held

    def feeds(self, batch, number, drawn):
        """Return what enters one microbatch: its part of the batch, its numbers."""
        one = torch.ones((), dtype=self.table["scale"], device=self.device)
        fed = {
            ("seed", "seed"): torch.tensor(drawn, device=self.device),
            ("microbatch", "micro"): torch.tensor(number, device=self.device),
            ("loss-scale", "loss_scale"): one,
        }
        for name, (cuts, size) in self.table["inputs"].items():
            whole = batch[name]
            if size is not None:
                whole = whole.narrow(0, number * size, size)
            fed["input", name] = self._shard(whole, cuts)
        return fed

    def run(self, function, values):
        at = dict(zip(self.table["axes"], self.coordinates, strict=True))
        return function(*values, groups=self.groups, at=at, device=self.device)

    def complete(self, sums):
        """Bring what the microbatches added up to where it leaves; return all."""
        left = dict(sums)
        for taken, complete, keys in self.program["completing"]:
            made = self.run(complete, [sums[key] for key in taken])
            left |= zip(keys, made, strict=True)
        return left

    def _shard(self, whole, cuts):
        whole, sizes = whole.detach(), self.table["sizes"]
        return shard(whole, cuts, sizes, self.coordinates).to(self.device)


class Model:
    """This rank's part of the model.

    Attributes:
        parameters: by name, this rank's part, as an optimizer updates it.
        buffers: the same of the model's buffers.
        outputs: of the last step, by name, this rank's part of each microbatch's.
        seed: of everything that the model draws; the same on every rank.
    """

    def __init__(self, weights, device=None):
        self.device = torch.device(
            device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        self.stages = {}
        for number, table in enumerate(STAGES):
            ranks = torch.tensor(table["ranks"]).reshape(table["sizes"])
            mesh = DeviceMesh(self.device.type, ranks, mesh_dim_names=table["axes"])
            if dist.get_rank() in table["ranks"]:
                self.stages[number] = Stage(table, mesh, weights, self.device)
        every = self.stages.values()
        self.parameters = {n: x for s in every for n, x in s.parameters.items()}
        self.buffers = {n: x for s in every for n, x in s.buffers.items()}
        self.outputs = {}
        self.seed = 0
        self.num_steps = 0
'''

STEP = '''
    def step(self, batch):
        """Run forward and backward on a global batch; return the loss, None without.

        Gradients are added to ``.grad`` of the parameters; buffers are written.
        """
        with torch.no_grad():
            return self._step(batch)

    def _step(self, batch):
        self.state = {number: stage.state() for number, stage in self.stages.items()}
        self.sums = {number: {} for number in self.stages}
        self.held, self.made, self.sent = {}, {}, {}
        left = self._run(batch)
        self.num_steps += 1
        self.outputs = {}
        for (kind, name), values in self.made.items():
            if kind == "mutated-buffer":
                self.buffers[name].copy_(values[MICROBATCHES - 1])
            else:
                self.outputs[name] = [values[number] for number in range(MICROBATCHES)]
        for (kind, name), value in left.items():
            if kind == "gradient":
                parameter = self.parameters[name]
                value = value.clone(memory_format=torch.contiguous_format)
                if parameter.grad is not None:
                    value += parameter.grad
                parameter.grad = value
        return left.get(("loss", "loss"))

    def _compute(self, number, part, microbatch, batch):
        """Run a part of a stage on a microbatch; add up what all of them make of."""
        stage = self.stages[number]
        held = self.held.setdefault((number, microbatch), {})
        if part == 0:
            drawn = (self.seed << 32) | self.num_steps
            held |= self.state[number] | stage.feeds(batch, microbatch, drawn)
        step, entering, leaving = stage.program["steps"][part]
        results = stage.run(step, [held[key] for key in entering])
        sums = self.sums[number]
        for key, value in zip(leaving, results, strict=True):
            if key[0] == "saved":
                held[key] = value
            elif key[0] in ("loss", "gradient", "shared-gradient"):
                if value is not None:
                    sums[key] = sums[key] + value if key in sums else value
            elif key[0] in ("sent-forward", "sent-backward"):
                self.sent[key, microbatch] = value
            elif value is not None:
                self.made.setdefault(key, {})[microbatch] = value
        later = stage.program["steps"][part + 1 :]
        needed = {key for _, entering, _ in later for key in entering}
        self.held[number, microbatch] = {k: x for k, x in held.items() if k in needed}
'''

ALONE = """
    def _run(self, batch):
        for number in range(MICROBATCHES):
            self._compute(0, 0, number, batch)
        return self.stages[0].complete(self.sums[0])
"""

TRAINING = '''\
def main(weights, batch, steps="1"):
    """Train with AdamW on one batch and print the losses."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = Model(torch.load(weights, weights_only=True))
    batch = torch.load(batch, weights_only=True)
    own = [*model.parameters.values()]
    if not own:  # as of some stages; optimizers refuse to be given nothing
        own = [nn.Parameter(torch.empty(0, device=model.device))]
    optimizer = torch.optim.AdamW(own, lr=1e-3)
    for number in range(int(steps)):
        loss = model.step(batch)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {number + 1}  loss {float(loss):.6f}", flush=True)
'''

INFERENCE = '''\
def main(weights, batch, steps="1"):
    """Run one batch and print the shapes of what every rank makes."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = Model(torch.load(weights, weights_only=True))
    batch = torch.load(batch, weights_only=True)
    for number in range(int(steps)):
        model.step(batch)
        for name, parts in model.outputs.items():
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            print(f"step {number + 1}  rank {dist.get_rank()}  {name} {shapes}")
'''

END = """\
    dist.barrier()  # gloo aborts where a peer leaves first
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
"""
