"""Upstream through the packs' patches, locked."""
