"""Discrete events over a schedule: when what runs, and who waits for whom."""
