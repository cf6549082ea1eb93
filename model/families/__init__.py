"""Architectures: which kinds their layers are, and their sizes. Imports no torch."""
