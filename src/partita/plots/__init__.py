"""Plots of a plan, for papers and talks."""
