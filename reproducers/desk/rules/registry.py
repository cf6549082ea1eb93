"""What a rule is, what it yields, and the table of all rules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reproducers.desk.rules.case import Case

FAMILIES = (
    *("prose.gfm", "prose.links", "prose.private", "prose.english", "evidence", "prose.numbers", "patch.patches"),
    *(
        "patch.headers",
        "patch.formatted",
        "patch.added_tests",
        "filed",
        "prose.posted",
        "prose.minimal",
        "complete",
        "attached",
    ),
)


@dataclass(frozen=True)
class Breach:
    """A breach of a rule: where it is, what is wrong, and what ends it."""

    file: Path
    line: int
    what: str
    remedy: str


@dataclass(frozen=True)
class Skip:
    """Why a rule could not look at a pack here."""

    why: str


RuleCheck = Callable[[Case], Iterator[Breach | Skip]]


@dataclass(frozen=True)
class Rule:
    """A check with the name it is reported and exempted by, and its meaning in one line."""

    id: str
    meaning: str
    check: RuleCheck


RULES: dict[str, Rule] = {}


def rule(name: str, meaning: str) -> Callable[[RuleCheck], RuleCheck]:
    """Register the decorated check under ``name``."""

    def keep(check: RuleCheck) -> RuleCheck:
        RULES[name] = Rule(name, meaning, check)
        return check

    return keep


def all_rules() -> dict[str, Rule]:
    """Every rule by name, in the order of the families."""
    for family in FAMILIES:
        importlib.import_module(f"reproducers.desk.rules.{family}")
    return RULES
