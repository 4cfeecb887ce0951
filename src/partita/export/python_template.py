"""The parts of an exported Python program that are the same for every plan."""

HEAD = '''\
"""What every rank runs, in plain PyTorch.

    torchrun --nproc-per-node {ranks} FILE weights.pt batch.pt [STEPS]

``weights.pt`` holds the model's state dict, ``batch.pt`` a dict with the tensors of one
global batch by the names in INPUTS; every rank reads both and keeps its part. Or from
another file: ``model = Model(weights)``, ``loss = model.step(batch)``, and any
elementwise optimizer over ``model.parameters.values()``.

Comments give the types of this rank's tensors and where they live: of every axis of the
mesh ``S(dim)``, cut along a dim; ``B``, whole; ``P``, a part of a sum.
"""

from __future__ import annotations

import base64
import itertools
import sys
import zlib
'''

MIDDLE = '''

def constant(dtype, shape, text):
    """Return a tensor that the model's code makes, from its bytes."""
    raw = bytearray(zlib.decompress(base64.b64decode(text)))
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).clone()
'''

TAIL = '''

def shard(whole, cuts, coordinates):
    """Return this rank's part: per axis, a cut is a dim and its segments, or None."""
    runs = [[(0, size)] for size in whole.shape]
    for cut, count, at in zip(cuts, SIZES, coordinates, strict=True):
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
        mesh = init_device_mesh(self.device.type, SIZES, mesh_dim_names=AXES)
        self.groups = {axis: mesh.get_group(axis) for axis in AXES}
        self.coordinates = tuple(mesh.get_coordinate())
        self.program = PROGRAMS[PROGRAM_OF_RANK[dist.get_rank()]]
        weights = {**BUFFERS_NOT_SAVED, **weights}
        self.parameters = {
            name: nn.Parameter(self._shard(weights[name], cuts), name in TRAINED)
            for name, cuts in PARAMETERS.items()
        }
        self.buffers = {n: self._shard(weights[n], c) for n, c in BUFFERS.items()}
        self._constants = {n: self._shard(CONSTANTS[n], c) for n, c in CUTS.items()}
        self.outputs = {}
        self.seed = 0
        self.num_steps = 0

    def step(self, batch):
        """Run forward and backward on a global batch; return the loss, None without.

        Gradients are added to ``.grad`` of the parameters; buffers are written.
        """
        with torch.no_grad():
            return self._step(batch)

    def _step(self, batch):
        held = {("parameter", name): x for name, x in self.parameters.items()}
        held |= {("buffer", name): x for name, x in self.buffers.items()}
        held |= {("constant", name): x for name, x in self._constants.items()}
        held["loss-scale", "loss_scale"] = torch.ones((), device=self.device)
        for name, bring in self.program["bringing"]:
            (held["parameter", name],) = self._run(bring, [self.parameters[name]])
        sums, made = {}, {}
        for number in range(MICROBATCHES):
            fed = {**held, **self._feeds(batch, number)}
            entering = [fed[key] for key in self.program["entering"]]
            results = self._run(self.program["step"], entering)
            for key, value in zip(self.program["leaving"], results, strict=True):
                if value is not None and key[0] in ("loss", "gradient"):
                    sums[key] = sums[key] + value if key in sums else value
                elif value is not None:
                    made.setdefault(key, []).append(value)
        left = dict(sums)
        for key, complete, keys in self.program["completing"]:
            left |= zip(keys, self._run(complete, [sums[key]]), strict=True)
        self.num_steps += 1
        self.outputs = {n: x for (kind, n), x in made.items() if kind == "output"}
        for (kind, name), values in made.items():
            if kind == "mutated-buffer":
                self.buffers[name].copy_(values[-1])
        for (kind, name), value in left.items():
            if kind == "gradient":
                parameter = self.parameters[name]
                value = value.clone(memory_format=torch.contiguous_format)
                if parameter.grad is not None:
                    value += parameter.grad
                parameter.grad = value
        return left.get(("loss", "loss"))

    def _run(self, function, values):
        at = dict(zip(AXES, self.coordinates, strict=True))
        return function(*values, groups=self.groups, at=at, device=self.device)

    def _shard(self, whole, cuts):
        return shard(whole.detach(), cuts, self.coordinates).to(self.device)

    def _feeds(self, batch, number):
        drawn = (self.seed << 32) | self.num_steps
        fed = {
            ("seed", "seed"): torch.tensor(drawn, device=self.device),
            ("microbatch", "micro"): torch.tensor(number, device=self.device),
        }
        for name, (cuts, size) in INPUTS.items():
            whole = batch[name]
            if size is not None:
                whole = whole.narrow(0, number * size, size)
            fed["input", name] = self._shard(whole, cuts)
        return fed


def main(weights, batch, steps="1"):
    """Train with AdamW on one batch and print the losses."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = Model(torch.load(weights, weights_only=True))
    batch = torch.load(batch, weights_only=True)
    optimizer = torch.optim.AdamW(model.parameters.values(), lr=1e-3)
    for number in range(int(steps)):
        loss = model.step(batch)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {number + 1}  loss {float(loss):.6f}", flush=True)
    dist.barrier()  # gloo aborts where a peer leaves first
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
'''
