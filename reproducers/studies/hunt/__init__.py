"""Differential fuzzing of an upstream release's functions; ``python -m reproducers.hunt`` starts it."""
