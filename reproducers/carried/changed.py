"""The functions that carried patches change, as digests: a release's number says nothing of what was applied to it."""

from __future__ import annotations

from typing import NamedTuple

from patchlane.base.files import write_atomic
from patchlane.known import functions as code
from reproducers.carried.entry import RECORD, Carried
from reproducers.carried.meeting import judging
from reproducers.carried.meeting.judging import Changes
from reproducers.carried.meeting.trees import Tree

Code = dict[str, str | None]  # {"path:qualified name": digest, None where there is no such function}


class Changed(NamedTuple):
    """The functions that an entry changes on top of those before it, as they are without it and with it."""

    entry: str
    before: Code
    after: Code


def changed(entries: list[Carried], base: Tree) -> list[Changed]:
    """The functions of each entry, by paths below the import root; none where it changes no Python that can be read."""
    root = "" if entries[0].upstream.source_root == "." else f"{entries[0].upstream.source_root}/"
    below, found = Changes(), list[Changed]()
    for entry in entries:
        before, after = Code(), Code()
        start = dict(below)
        for file in entry.diff.files:
            below |= judging.meet(file, base.over(below))[1]
        for path in sorted(path for path in below if path not in start or start[path] != below[path]):
            one, other = digests(base.over(start)(path), path), digests(below[path], path)
            for name in sorted(one.keys() | other.keys()):
                if one.get(name) != other.get(name):
                    key = f"{path.removeprefix(root)}:{name}"
                    before[key], after[key] = one.get(name), other.get(name)
        found.append(Changed(entry.id, before, after))
    return found


def note(entries: list[Carried], base: Tree) -> list[Carried]:
    """Write into the entries' records which functions they change; returns the entries with them."""
    noted = []
    for entry, one in zip(entries, changed(entries, base), strict=True):
        functions = {name: (one.before[name], one.after[name]) for name in one.after}
        noted.append(entry.model_copy(update={"functions": functions}))
        write_atomic(entry.folder / RECORD, noted[-1].text.encode())
    return noted


def digests(content: bytes | None, path: str) -> dict[str, str]:
    """{qualified name: digest} of a Python file; none of another file, or of one that this interpreter cannot read."""
    if content is None or not path.endswith(".py"):
        return {}
    try:
        return {name: function.digest for name, function in code.functions(content).items()}
    except (SyntaxError, ValueError):
        return {}
