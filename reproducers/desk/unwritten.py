"""``<write ...>``: where a new pack's files wait for a person. Nothing that is published takes it for text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import Pack, text_of

MARK = re.compile(r"<write ([^<>]+)>")
FIELD = re.compile(r"^\s*(?:- )?([\w-]+):", re.M)
TOLD = "python -m reproducers.lint {}, which lists each place; docs/writing-a-pack.md"
PUBLISHED = ("pack.yaml", "body.md.j2", "reproducer.py", "*.patch")


def marks(text: str) -> list[tuple[int, str]]:
    """(line, what to write) of every mark left in a file's text."""
    return [(text.count("\n", 0, mark.start()) + 1, mark[1]) for mark in MARK.finditer(text)]


def left(pack: Pack, patterns: Iterable[str] = PUBLISHED) -> list[str]:
    """``NN_slug/file:line: field: what to write`` of each mark in the pack's files of these names; field where it
    stands in one."""
    rows = []
    for path in sorted({path for pattern in patterns for path in pack.folder.glob(pattern) if path.is_file()}):
        text = text_of(path)
        lines = text.splitlines()
        for line, what in marks(text):
            fields = (
                FIELD.findall("\n".join(lines[:line])) if path.name == "pack.yaml" else FIELD.findall(lines[line - 1])
            )
            rows.append(f"{pack.folder.name}/{path.name}:{line}: {f'{fields[-1]}: ' if fields else ''}<write {what}>")
    return rows


def refuse(packs: list[Pack], patterns: Iterable[str] = PUBLISHED) -> list[Pack]:
    """The packs; PatchlaneError for those of which a text that is to be published is not written yet."""
    found = {pack.id: rows for pack in packs if (rows := left(pack, tuple(patterns)))}
    if found:
        rows = [f"{name} is not written yet: {row}" for name, marked in found.items() for row in marked]
        raise PatchlaneError("\n".join(rows), TOLD.format(" ".join(found)))
    return packs
