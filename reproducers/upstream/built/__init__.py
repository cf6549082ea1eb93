"""Needs that upstream publishes as source only or for seven GPU architectures."""
