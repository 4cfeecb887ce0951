"""Formats that need the model: what a plan makes of it, for PyTorch alone."""
