"""A plan, or two side by side, as one self-contained page."""
