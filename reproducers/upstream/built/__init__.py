"""Needs that are published as source or for seven GPU architectures."""
