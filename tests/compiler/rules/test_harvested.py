"""The table against real calls of every op that torch's database knows."""

import pytest
from tests.compiler.rules.op_database import harvested

from partita.compiler.rules.table import default_rules
from partita.testing.table_proof import format_proofs, prove_table

NUM_PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_rows_hold_for_every_harvested_call(part: int) -> None:
    samples = harvested().samples
    ops = sorted(op for op in samples if default_rules.get(op))

    proofs = prove_table(
        default_rules, {op: samples[op] for op in ops[part::NUM_PARTS]}
    )

    assert [failure for proof in proofs for failure in proof.failures] == []
    assert sum(proof.num_samples for proof in proofs) > 1000
    print(format_proofs(proofs, {}))
