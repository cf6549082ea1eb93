"""Small pieces of text that every room uses."""

from __future__ import annotations

import re

SHA = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")


def short(text: object) -> str:
    """The text with full commit hashes cut to 12 digits."""
    return SHA.sub(r"\1", str(text))


def count(number: int, noun: str) -> str:
    """``1 guard``, ``2 guards``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def requirement_name(requirement: str) -> str:
    """The distribution that a requirement such as ``triton==3.6.0`` names."""
    name = re.match(r"[\w.-]+", requirement)
    return name[0] if name else requirement
