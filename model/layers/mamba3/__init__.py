"""Mamba-3: upstream's kernels for rows and streams, and the reference in torch."""
