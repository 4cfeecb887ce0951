"""The search that decides every placement, and explains it."""
