"""Patches that somebody else wrote, byte for byte: their files and hunks, and how people keep them."""
