"""Time the search on joint graphs of transformers made by hand.

    python benchmarks/search_speed.py --layers 2 --mesh 2,4 --limit 60

The graphs have the ops, shapes and consumers of a captured GPT-2 (forward and
backward); boxing and compute prices are plain alpha-beta formulas.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from itertools import product
from math import prod

import torch

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Sharding, Split
from partita.compiler.ir.signature import AxisSignature, compose
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.problem import Choice, Problem, SearchNode, Tie
from partita.compiler.search.solver import solve

FLOPS_PER_S = 5e10
MEMORY_BYTES_PER_S = 1e10
LAUNCH_S = 5e-6
ALPHA_S = (5e-5, 2e-5, 1e-5)  # per axis, slowest links first
WIRE_BYTES_PER_S = (5e8, 2e9, 4e9)

Value = tuple[int, int]


@dataclass
class Graph:
    """A graph under construction; an op is written ``"m k, k n -> m n"``."""

    mesh: Mesh
    sizes: dict[str, int]
    nodes: list[SearchNode] = field(default_factory=list[SearchNode])
    ties: list[Tie] = field(default_factory=list[Tie])

    def op(
        self,
        name: str,
        rule: str,
        *operands: Value,
        linear: str = "",
        whole: str = "",
        flops: str = "",
    ) -> tuple[Value, ...]:
        """Add a node; ``linear`` names the operands that may be partial."""
        left, right = (
            [part.split() for part in side.split(",") if part.strip()]
            for side in rule.split("->")
        )
        letters = sorted({x for part in left + right for x in part} - set(whole))
        per_axis = [
            self._axis_signatures(left, right, letters, linear, size)
            for size in self.mesh.sizes
        ]
        types = [
            TensorType(tuple(self.sizes[x] for x in p), torch.float32) for p in right
        ]
        work = 2.0 * prod(self.sizes[x] for x in flops.split()) if flops else 0.0
        num_bytes = 4.0 * sum(prod(self.sizes[x] for x in p) for p in left + right)
        choices: dict[str, Choice] = {}
        for axes in product(*per_axis):
            signature = compose(axes)
            spread = prod(
                size
                for axis, size in zip(axes, self.mesh.sizes, strict=True)
                if any(isinstance(s, Split) for s in (*axis.operands, *axis.results))
            )
            seconds = LAUNCH_S + max(work / FLOPS_PER_S, num_bytes / MEMORY_BYTES_PER_S)
            choices[str(signature)] = Choice(signature, seconds / spread)
        index = len(self.nodes)
        self.nodes.append(
            SearchNode(
                f"{name}/{index}", tuple(choices.values()), operands, tuple(types)
            )
        )
        return tuple((index, result) for result in range(len(right)))

    def _axis_signatures(
        self,
        left: list[list[str]],
        right: list[list[str]],
        letters: list[str],
        linear: str,
        size: int,
    ) -> list[AxisSignature]:
        broadcast = Broadcast()

        def place(part: list[str], letter: str, absent: Sharding) -> Sharding:
            return Split(part.index(letter)) if letter in part else absent

        found = [AxisSignature((broadcast,) * len(left), (broadcast,) * len(right))]
        for letter in letters:
            if self.sizes[letter] < size:
                continue
            found.append(
                AxisSignature(
                    tuple(place(part, letter, broadcast) for part in left),
                    tuple(place(part, letter, Partial()) for part in right),
                )
            )
        for group in linear.split("|") if linear else []:
            partial = {int(index) for index in group.split("+")}
            found.append(
                AxisSignature(
                    tuple(
                        Partial() if i in partial else broadcast
                        for i in range(len(left))
                    ),
                    (Partial(),) * len(right),
                )
            )
        return found

    def tie(self, parameter: Value, gradient: Value, rule: str) -> None:
        """Hand a gradient out in its parameter's placement."""
        output = self.op("output", f"{rule} -> {rule}", gradient, linear="0")
        self.ties.append(Tie(parameter[0], output[0][0]))

    def problem(self) -> Problem:
        """Return the finished problem."""
        sizes = self.mesh.sizes

        def box_seconds(type_: TensorType, made: Placement, wanted: Placement) -> float:
            total = 0.0
            here = list(made.shardings)
            # split first, then reduce and gather, each on what is left locally
            changes = [a for a in range(len(sizes)) if here[a] != wanted.shardings[a]]
            changes.sort(key=lambda a: not isinstance(wanted.shardings[a], Split))
            for axis in changes:
                local = type_.num_bytes / prod(
                    size
                    for size, s in zip(sizes, here, strict=True)
                    if isinstance(s, Split)
                )
                source, target = here[axis], wanted.shardings[axis]
                total += _one_axis(source, target, local, sizes[axis], axis)
                here[axis] = target
            return total

        return Problem(tuple(self.nodes), tuple(self.ties), self.mesh, box_seconds)


def _one_axis(
    source: Sharding, target: Sharding, local: float, size: int, axis: int
) -> float:
    alpha, rate = ALPHA_S[axis], WIRE_BYTES_PER_S[axis]
    touch = LAUNCH_S + local / MEMORY_BYTES_PER_S
    ring = (size - 1) / size
    if isinstance(target, Partial) or isinstance(source, Broadcast):
        if isinstance(source, Split) and isinstance(target, Partial):
            return touch * size
        return touch
    if isinstance(source, Partial):
        steps, wire = (2, 2 * ring) if isinstance(target, Broadcast) else (1, ring)
        return steps * (size - 1) * alpha + wire * local / rate
    if isinstance(target, Broadcast):
        return (size - 1) * (alpha + local / rate)
    return (size - 1) * alpha + ring * local / rate


def gpt2(mesh: Mesh, layers: int, batch: int, hidden: int) -> Problem:
    """Return the joint graph of a GPT-2 with this many layers."""
    sequence, heads, vocabulary = 128, 4, 4096
    sizes = {"b": batch, "s": sequence, "h": hidden, "n": 3 * hidden, "f": 4 * hidden}
    sizes |= {"v": vocabulary, "a": heads, "d": hidden // heads, "m": batch * sequence}
    sizes |= {"t": sequence, "g": hidden, "p": sequence}
    graph = Graph(mesh, sizes)
    op = graph.op
    (ids,), (labels,) = op("ids", "-> b s"), op("labels", "-> b s")
    (table,), (places,) = op("wte", "-> v h"), op("wpe", "-> p h")
    (word,) = op("embedding", "v h, b s -> b s h", table, ids, linear="0", whole="v")
    (at,) = op("embedding", "p h -> s h", places, whole="ps")
    (x,) = op("add", "b s h, s h -> b s h", word, at, linear="0+1")
    backward: list[tuple[object, ...]] = []

    def norm(x: Value) -> tuple[Value, object]:
        (w,), (b,) = op("weight", "-> h"), op("bias", "-> h")
        y, mean, rstd = op("ln", "b s h, h, h -> b s h, b s, b s", x, w, b, whole="h")

        def back(dy: Value) -> Value:
            dx, dw, db = op(
                "ln_back",
                "b s h, b s h, b s, b s, h -> b s h, h, h",
                dy,
                x,
                mean,
                rstd,
                w,
                whole="h",
            )
            graph.tie(w, dw, "h")
            graph.tie(b, db, "h")
            return dx

        return y, back

    def linear(x: Value, i: str, o: str) -> tuple[Value, object]:
        (w,), (b,) = op("weight", f"-> {i} {o}"), op("bias", f"-> {o}")
        (flat,) = op("view", f"b s {i} -> b {i}", x, whole="s", linear="0")
        (mm,) = op(
            "addmm",
            f"{o}, b {i}, {i} {o} -> b {o}",
            b,
            flat,
            w,
            linear="0+1|0+2",
            flops=f"m {i} {o}",
        )
        (y,) = op("view", f"b {o} -> b s {o}", mm, whole="s", linear="0")

        def back(dy: Value) -> Value:
            (dflat,) = op("view", f"b s {o} -> b {o}", dy, whole="s", linear="0")
            (wt,) = op("t", f"{i} {o} -> {o} {i}", w, linear="0")
            (dmm,) = op(
                "mm",
                f"b {o}, {o} {i} -> b {i}",
                dflat,
                wt,
                linear="0|1",
                flops=f"m {i} {o}",
            )
            (xt,) = op("t", f"b {i} -> {i} b", flat, linear="0")
            (dw,) = op(
                "mm",
                f"{i} b, b {o} -> {i} {o}",
                xt,
                dflat,
                linear="0|1",
                flops=f"m {i} {o}",
            )
            (db,) = op("sum", f"b {o} -> {o}", dflat, linear="0")
            (dbv,) = op("view", f"{o} -> {o}", db, linear="0")
            graph.tie(w, dw, f"{i} {o}")
            graph.tie(b, dbv, o)
            (dx,) = op("view", f"b {i} -> b s {i}", dmm, whole="s", linear="0")
            return dx

        return y, back

    def attention(qkv: Value) -> tuple[Value, object]:
        parts = op("split", "b s n -> b s h, b s h, b s h", qkv, whole="nh", linear="0")
        heads: list[Value] = []
        for part in parts:
            (v,) = op("view", "b s a -> b s a d", part, whole="d", linear="0")
            heads += op("transpose", "b s a d -> b a s d", v, linear="0")
        q, k, v = heads
        out, lse = op(
            "sdpa",
            "b a s d, b a t d, b a t d -> b a s d, b a s",
            q,
            k,
            v,
            whole="std",
            flops="b a s t d",
        )
        (o,) = op("transpose", "b a s d -> b s a d", out, linear="0")
        (y,) = op("view", "b s a d -> b s a", o, whole="d", linear="0")

        def back(dy: Value) -> Value:
            (dv,) = op("view", "b s a -> b s a d", dy, whole="d", linear="0")
            (do,) = op("transpose", "b s a d -> b a s d", dv, linear="0")
            grads = op(
                "sdpa_back",
                "b a s d, b a s d, b a t d, b a t d, b a s d, b a s"
                " -> b a s d, b a t d, b a t d",
                do,
                q,
                k,
                v,
                out,
                lse,
                whole="std",
                flops="b a s t d",
            )
            flat: list[Value] = []
            for grad in grads:
                (t,) = op("transpose", "b a s d -> b s a d", grad, linear="0")
                flat += op("view", "b s a d -> b s a", t, whole="d", linear="0")
            (d,) = op(
                "cat", "b s h, b s h, b s h -> b s n", *flat, whole="hn", linear="0+1+2"
            )
            return d

        return y, back

    for _ in range(layers):
        y, ln1 = norm(x)
        y, qkv = linear(y, "h", "n")
        y, att = attention(y)
        y, proj = linear(y, "h", "g")
        (x1,) = op("add", "b s h, b s h -> b s h", x, y, linear="0+1")
        y, ln2 = norm(x1)
        u, up = linear(y, "h", "f")
        (y,) = op("gelu", "b s f -> b s f", u)
        y, down = linear(y, "f", "h")
        (x,) = op("add", "b s h, b s h -> b s h", x1, y, linear="0+1")
        backward.append((ln1, qkv, att, proj, ln2, up, u, down))
    y, last = norm(x)
    (flat,) = op("view", "b s h -> b h", y, whole="s", linear="0")
    (tt,) = op("t", "v h -> h v", table, linear="0")
    (logits,) = op("mm", "b h, h v -> b v", flat, tt, linear="0|1", flops="m h v")
    (lab,) = op("view", "b s -> b", labels, whole="s")
    (lp,) = op("log_softmax", "b v -> b v", logits, whole="v")
    (loss, count) = (
        op("nll", "b v, b -> , ", lp, lab, whole="v")
        if False
        else (op("nll", "b v, b -> b", lp, lab, whole="v") + op("one", "-> b"))
    )
    del loss, count
    (dlp,) = op("nll_back", "b v, b -> b v", lp, lab, whole="v")
    (dlogits,) = op("log_softmax_back", "b v, b v -> b v", dlp, lp, whole="v")
    (dflat,) = op("mm", "b v, v h -> b h", dlogits, table, linear="0|1", flops="m h v")
    (yt,) = op("t", "b h -> h b", flat, linear="0")
    (dtt,) = op("mm", "h b, b v -> h v", yt, dlogits, linear="0|1", flops="m h v")
    (dhead,) = op("t", "h v -> v h", dtt, linear="0")
    (dy,) = op("view", "b h -> b s h", dflat, whole="s", linear="0")
    dx = last(dy)  # type: ignore[operator]
    for ln1, qkv, att, proj, ln2, up, u, down in reversed(backward):
        d = down(dx)  # type: ignore[operator]
        (d,) = op("gelu_back", "b s f, b s f -> b s f", d, u, linear="0")
        d = ln2(up(d))  # type: ignore[operator]
        (dx1,) = op("add", "b s h, b s h -> b s h", dx, d, linear="0+1")
        d = ln1(qkv(att(proj(dx1))))  # type: ignore[operator]
        (dx,) = op("add", "b s h, b s h -> b s h", dx1, d, linear="0+1")
    (dat,) = op("sum", "b s h -> s h", dx, linear="0")
    (dplaces,) = op("pad", "s h -> p h", dat, whole="sp", linear="0")
    graph.tie(places, dplaces, "p h")
    (dword,) = op("embedding_back", "b s h, b s -> v h", dx, ids, whole="v", linear="0")
    (dtable,) = op("add", "v h, v h -> v h", dhead, dword, linear="0+1")
    graph.tie(table, dtable, "v h")
    return graph.problem()


def main() -> None:
    """Print the size of each problem and how its search went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--mesh", default="2", help="sizes of the axes, e.g. 2,4")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds")
    options = parser.parse_args()
    sizes = [int(size) for size in options.mesh.split(",")]
    mesh = Mesh(**{f"axis{index}": size for index, size in enumerate(sizes)})
    start = time.perf_counter()
    problem = gpt2(mesh, options.layers, options.batch, options.hidden)
    made = time.perf_counter() - start
    counts = [len(node.choices) for node in problem.nodes]
    print(
        f"mesh {mesh}: {len(counts)} nodes, {sum(counts)} choices, at most "
        f"{max(counts)} (made in {made:.1f} s)"
    )
    solution = solve(problem, options.limit)
    print(
        f"  {solution.status}: {solution.seconds * 1e3:.4f} ms, gap {solution.gap:.2%},"
        f" {solution.solver}, {solution.wall_s:.2f} s"
    )


if __name__ == "__main__":
    main()
