"""One captured model on one mesh: its rules, its plans, what helps if none fits."""
