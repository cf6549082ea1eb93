"""Kinds whose layers hand a state on from token to token."""
