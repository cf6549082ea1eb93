"""The list of verbs. ``python -m model``."""

from __future__ import annotations

from pathlib import Path

from reproducers.__main__ import show

if __name__ == "__main__":
    show("model", Path(__file__).parent)
