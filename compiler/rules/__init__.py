"""The table of op sharding rules: one row per op, one form."""
