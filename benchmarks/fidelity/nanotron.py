"""How Nanotron ran the sweep, and on which links: what a row says of both.

github.com/huggingface/nanotron as it was for the Ultra-Scale Playbook, October 2024 to
March 2025; the file and the commit, where it matters, stand beside each figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.fidelity.system import System

from partita.compiler.hardware.links import CollectiveCost, Link
from partita.compiler.hardware.profile import Hardware, load_hardware

_PROFILE, _WITHIN = "h100-efa", "nvlink"

NANOTRON = System(
    issue_s=25e-6,
    sends_alone=True,
    receives_alone=True,
    sums_beside=True,
    sums_in_f32=True,
    is_sequence_first=False,
    gathers_copies=True,
    group_bytes=(544 * 2**20, 688 * 2**20),
    fused=(
        "*norm*/_to_copy/0",
        "*norm*/mul.Tensor/0",
        "layers.*.attention/*",
    ),
    queued=1000,
    kernels=(33, 51),
)
"""Nanotron as it was for the playbook (github.com/huggingface/nanotron).

scripts/scaling_benchmarks.py: ``tp_linear_async_communication``, sums in f32;
parallel/tensor_parallel/functional.py: _ColumnLinearAsyncCommunication, of which the
gather is not taken as hidden, since the product is cut into up to three for that;
parallel/pipeline_parallel/p2p.py: sends and receives are waited for, one by one;
models/llama.py: attention has the batch first, and copies for that about what
Partita's programs copy; TritonRMSNorm keeps its operand and a scale for each token,
flash_rotary_embedding angles, and of query, key and value there is one copy.
parallel/context.py: which groups there are; what NCCL holds for one: its issue 964.
An op run from Python takes the host 5 to 25 us (jiahuanglin.xyz, "From PyTorch op to
kernel launch"); the most is taken, for modules and functions of autograd in Python.
torch up to 2.6 records the streams of collectives (its issue 147168); the device takes
about 1000 commands before the host waits (forums.developer.nvidia.com, 68937). Kernels
of a layer are those that models/llama.py and parallel/tensor_parallel launch; what is
gathered stays (parallel/utils.py, MemoryBuffer).
"""

_CHECKED_S = ((2, 0.45e-3), (8, 1.57e-3), (16, 5.2e-3), (32, 9.2e-3), (64, 17.5e-3))
"""What comparing a collective takes under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``.

torch, ProcessGroupWrapper.cpp, runCollectiveChecks: before a collective is issued,
rank 0 hears and answers each other host, and what it is gets gathered twice, all with
gloo. That most runs were under it is concluded: nanotron's run_multinode.sh, which
sets NANOTRON_BENCHMARK, has it in commit 77f54c10 and not yet in 67c5ebb6, and the
bandwidths noted beside the runs are of two kinds. From their medians the seconds are:
trainer.py, measure_bandwidth, times ten calls on 1 GiB and a barrier. On a node (8) the
device is behind, and they take two checks longer; between nodes (16, 32, 64) the host
is, and they take 11 checks and one all-gather. Of two: three times the 150 us of gloo's
quickest collective (torch issue 127179).
"""

_UNCHECKED = 435.0
"""GB/s of bus bandwidth within a node that is reached without: 439 to 462, else 430."""

_POLL_S = 0.1

WITHOUT_P2P = replace(NANOTRON, announced_s=(4 * _POLL_S, 2 * _POLL_S))
"""Nanotron where NCCL_P2P_DISABLE was set, so that nothing passed over NVLink.

The commit that asks for that variable, 67c5ebb6 ("pp", branch nouamane/bench2), is also
the one that sends and receives what describes a tensor by looking every 0.1 s whether
it is there: parallel/pipeline_parallel/p2p.py, _send_meta and _recv_meta, twice each,
whereupon both ends have slept twice. state.py, run_communication: one tensor at a time.
Forward pass the stream and the mask of the sequence (models/llama.py, LlamaModel), back
the gradient of the stream. run_multinode.sh does not have collectives compared there.
"""

_PCIE = 63.0
"""GB/s of PCIe 5.0 with 16 lanes: with less within a node NVLink was not in use."""


@dataclass(frozen=True)
class Ran:
    """What carried a row out: how, and on which machine."""

    system: System
    hardware: str | Hardware


def ran(row: Mapping[str, Any]) -> Ran:
    """Return what the bandwidth that a row notes within its nodes says.

    Without ZeRO gradients are added up by DDP's hooks, in the last backward; with it
    behind that (nanotron, trainer.py, make_ddp).
    """
    noted = row["intra_node_all_reduce_busbw_gbps"]
    within = float(noted) if noted else _UNCHECKED
    system, hardware = NANOTRON, _PROFILE
    if within < _PCIE:
        system, hardware = WITHOUT_P2P, at_most(_PROFILE, _WITHIN, within)
    elif within < _UNCHECKED:
        system = replace(NANOTRON, checked_s=_CHECKED_S)
    in_backward = float(row["zero_stage"]) == 0
    return Ran(replace(system, sums_in_backward=in_backward), hardware)


def at_most(profile: str, name: str, gb_per_s: float) -> Hardware:
    """Return a machine a link of which carries no more than was measured on it."""
    hardware = load_hardware(profile)

    def slowed(cost: CollectiveCost) -> CollectiveCost:
        rate = min(cost.bytes_per_s, gb_per_s * 1e9)
        others = tuple(map(slowed, cost.others))
        return replace(cost, bytes_per_s=rate, others=others)

    def as_measured(link: Link) -> Link:
        if link.name != name:
            return link
        costs = {kind: slowed(cost) for kind, cost in link.costs.items()}
        return replace(link, costs=costs)

    return replace(
        hardware,
        name=f"{profile} with {gb_per_s:g} GB/s of {name}",
        links=tuple(map(as_measured, hardware.links)),
    )
