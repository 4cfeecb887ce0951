"""``partita calibrate``: measure this machine and write its profile."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from partita.cli.command import (
    OK,
    Command,
    add_json,
    check_output,
    print_json,
    tell,
    write_output,
)
from partita.compiler.hardware.fit import axes_to_measure, fit_hardware
from partita.compiler.hardware.profile import Hardware
from partita.compiler.hardware.samples import Measured
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.store import format_json
from partita.compiler.plan.units import format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask where the profile goes, and which groups are to be measured."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="hardware.json",
        required=True,
        help="where the profile is saved",
    )
    parser.add_argument(
        "--mesh",
        help="axes and sizes, slowest links first, whose groups are measured: "
        "dp=2,tp=2 (one axis over the GPUs of this machine, or over two CPU ranks)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Launch the ranks, measure, fit, save, print."""
    mesh = Mesh.parse(options.mesh or _default_mesh())
    axes_to_measure(mesh)  # so that a mesh without links is told before it starts
    check_output(options.output)

    from partita.runtime.launch import launch

    measured = launch(measure_rank, mesh.size, (str(mesh), options.quick))[0]
    if os.environ.get("RANK", "0") != "0":
        return OK  # under torchrun the first rank tells
    hardware = fit_hardware(measured, mesh, Path(options.output).stem or "measured")
    document = hardware.to_dict()
    write_output(options.output, format_json(document) + "\n")
    tell(f"saved {options.output}")
    if options.json:
        print_json(document)
    else:
        sys.stdout.write(_summary(hardware))
    return OK


def measure_rank(mesh: str, is_quick: bool) -> Measured:
    """Measure on this rank together with the others."""
    from partita.runtime.calibrate import measure

    measured = measure(Mesh.parse(mesh), None, is_quick)
    torch.distributed.destroy_process_group()
    return measured


def _default_mesh() -> str:
    return f"tp={max(2, torch.cuda.device_count())}"


def _summary(hardware: Hardware) -> str:
    device = hardware.device
    lines = [f"{hardware.name}: {hardware.source}"]
    for dtype, flops_per_s in device.flops_per_s.items():
        lines.append(f"  matmul {dtype:5} {flops_per_s / 1e9:12,.1f} GFLOP/s at best")
    lines.append(f"  memory       {device.memory_bytes_per_s / 1e9:12,.1f} GB/s")
    lines += [
        f"  up to {cache.bytes / 1e6:8,.2f} MB {cache.bytes_per_s / 1e9:9,.1f} GB/s"
        for cache in device.caches
    ]
    lines.append(f"  launch       {format_seconds(device.launch_s):>12}")
    for link in hardware.links:
        for kind, cost in link.costs.items():
            text = f"{format_seconds(cost.alpha_s):>9} + {cost.bytes_per_s / 1e9:,.2f}"
            lines.append(f"  {link.name} {kind.value:15} {text} GB/s")
    lines += [
        f"  {path}: fitted to {error:.1%}" for path, error in hardware.errors.items()
    ]
    return "\n".join(lines) + "\n"


COMMAND = Command(
    name="calibrate",
    summary="measure this machine's compute and links",
    example="partita calibrate -o hardware.json --mesh tp=2",
    add_arguments=add_arguments,
    run=run,
)
