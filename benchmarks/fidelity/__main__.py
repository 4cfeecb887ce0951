"""Predicted seconds of a step beside those that publications state.

    python -m benchmarks.fidelity ../shared/data [--only Megatron-LM,sweep]

Nothing is fitted to a row: profiles hold data sheets, matmul tables and nccl-tests.
Of the sweep the bandwidths noted beside the runs are taken, too, none of their speeds.
Printed are all runs, the median error of each publication, and for the sweep of
layouts what a planner is judged by.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from benchmarks.fidelity import published, sweep
from benchmarks.fidelity.predict import predict

from partita.compiler.hardware.profile import load_hardware

_FOLDER = Path(__file__).parents[2].parent / "shared" / "data"
_NUMBERS, _SWEEP = "published_numbers.json", "h100_llama_sweep.csv"


def main() -> int:
    """Print the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=_FOLDER)
    parser.add_argument("--only", default="", help="publications, or 'sweep'")
    asked = parser.parse_args()
    lacking = [n for n in (_NUMBERS, _SWEEP) if not (asked.folder / n).is_file()]
    if lacking:
        print(
            f"{asked.folder} has no {' and no '.join(lacking)}; give the folder of the "
            "published numbers",
            file=sys.stderr,
        )
        return 2
    only = asked.only.split(",") if asked.only else []
    _print_published(asked.folder / _NUMBERS, only)
    if not only or "sweep" in only:
        _print_sweep(asked.folder / _SWEEP)
    return 0


def _print_published(path: Path, only: list[str]) -> None:
    runs, left_out = published.read(path)
    errors: list[float] = []
    for source, own in published.by_source(runs):
        if only and source not in only:
            continue
        print(f"{source:<50}  published  predicted  error")
        of_source: list[float] = []
        for run in own:
            found = predict(run.layout)
            error = found.seconds / run.seconds - 1
            of_source.append(abs(error))
            parts = " ".join(f"{k} {v:.3g}" for k, v in found.parts.items())
            print(
                f"{run.table[:12]:<12}  {run.layout!s:<36}  {run.seconds:9.2f}  "
                f"{found.seconds:9.2f}  {error:+6.1%}  {found.bytes / 2**30:5.1f} GiB"
                f"  {parts}",
                flush=True,
            )
        print(f"{source}: median error {median(of_source):.1%} of {len(own)}\n")
        errors += of_source
    if errors:
        print(f"all: median error {median(errors):.1%} of {len(errors)} runs; ", end="")
        print(f"{left_out} rows left out\n")


def _print_sweep(path: Path) -> None:
    rows = sweep.read(path)
    found = []
    for number, row in enumerate(rows):
        found.append(predict(row.layout))
        measured = "out of memory" if row.seconds is None else f"{row.seconds:.2f} s"
        print(
            f"{number:3} {row.nodes} nodes  {row.layout!s:<50} {measured:>14}  "
            f"{found[-1].seconds:8.2f} s  held {row.held_bytes / 2**30:5.1f}  "
            f"{found[-1].bytes / 2**30:6.1f} GiB",
            flush=True,
        )
    room = load_hardware("h100-efa").device.memory_bytes
    print("hidden  nodes  layouts  chosen  Spearman  median error")
    for group in sorted({row.group for row in rows}):
        at = [n for n, row in enumerate(rows) if row.group == group]
        judged = sweep.judge([rows[n] for n in at], [found[n] for n in at], room)
        print(
            f"{group[0]:6}  {group[1]:5}  {judged.count:7}  {judged.chosen:6.1%}  "
            f"{judged.spearman:8.3f}  {judged.median_error:6.1%}"
        )
    precision, recall = sweep.out_of_memory(rows, found, room)
    print(f"out of memory: precision {precision:.2f}, recall {recall:.2f}")


if __name__ == "__main__":
    sys.exit(main())
