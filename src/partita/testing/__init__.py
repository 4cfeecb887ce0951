"""The prover: a partitioned program against the original model."""
