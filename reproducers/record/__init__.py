"""Frozen models of the files that a person writes, pack.yaml and needs.yaml, and of receipts and the manifest."""
