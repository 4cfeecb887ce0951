"""The placement graph of a plan as one self-contained page."""
