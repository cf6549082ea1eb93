"""The list of verbs. ``python -m model``."""

from __future__ import annotations

from reproducers.__main__ import listing

if __name__ == "__main__":
    print(listing())
