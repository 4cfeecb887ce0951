"""Print the proof of the whole table: per op its signatures, calls, checks, misses.

Run as ``python -m tests.compiler.rules.report``, for some ops with their names or parts
of them: ``python -m tests.compiler.rules.report softmax aten.mm``. Misses that
``argued_misses.py`` gives no reason for are printed one by one, as are failures.
"""

from __future__ import annotations

import sys

from tests.compiler.rules.argued_misses import NOT_SEARCHED, is_argued
from tests.compiler.rules.op_database import harvested
from tests.compiler.rules.rule_samples import samples

from partita.compiler.rules.table import ROWS, default_rules
from partita.testing.missed import find_all_missed
from partita.testing.table_proof import format_proofs, prove_table


def main(parts: list[str]) -> int:
    """Print the report of the ops whose names have one of ``parts``; 1 if one fails."""
    found, by_hand = harvested(), samples()
    print(f"{found.num_calls} distinct calls of {len(found.samples)} ops")
    for reason, count in found.left_out.most_common():
        print(f"{count:>6} left out: {reason}")
    rows = [r for r in ROWS if not parts or any(part in r.op for part in parts)]
    calls = {r.op: [*found.samples.get(r.op, ()), *by_hand[r.op]] for r in rows}
    proofs = prove_table(default_rules, calls)
    missed = find_all_missed([r for r in rows if r.op not in NOT_SEARCHED], calls)
    print(format_proofs(proofs, {op: len(misses) for op, misses in missed.items()}))
    failures = [failure for proof in proofs for failure in proof.failures]
    unexplained = [
        str(miss)
        for misses in missed.values()
        for miss in misses
        if not is_argued(miss.op, str(miss.signature))
    ]
    for line in (*failures, *unexplained):
        print(line)
    return int(bool(failures or unexplained))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
