"""How programs change: one pass, one file, one name."""
