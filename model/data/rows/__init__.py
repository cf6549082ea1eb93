"""Documents packed into rows, and the loader."""
