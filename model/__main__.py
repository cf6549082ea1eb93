"""The list of verbs, as ``python -m reproducers`` has it."""

from __future__ import annotations

from reproducers.__main__ import main

if __name__ == "__main__":
    main()
