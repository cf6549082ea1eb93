"""Proof that a run executed what the packs changed."""
