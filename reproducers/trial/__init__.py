"""A run: arms in child processes, what they observed, and the verdict."""
