"""Receipts: written, verified, imported, and the manifest that they give."""
