"""Upstream code: fetched, checked, unpacked, pinned and patched."""
