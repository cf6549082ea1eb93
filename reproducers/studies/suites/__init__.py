"""Upstream's own tests on the pristine and on the patched tree: run, compared, kept."""
