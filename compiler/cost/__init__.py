"""Seconds and bytes of an op, of a boxing, and of memory over time."""
