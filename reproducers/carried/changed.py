"""Which carried patches an installed package has, by digests of the functions that they change, as packs' are found.

A release's number says nothing of a patch that somebody applied to it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from patchlane.known.functions import functions
from reproducers.carried.entry import Carried
from reproducers.carried.meeting import judging
from reproducers.carried.meeting.judging import Changes, Read
from reproducers.carried.meeting.trees import Tree

Code = dict[str, str | None]  # {"path:qualified name": digest, None where there is no such function}
State = Literal["patched", "not patched", "unknown"]


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


def digests(content: bytes | None, path: str) -> dict[str, str]:
    """{qualified name: digest} of a Python file; none of another file, or of one that this interpreter cannot read."""
    if content is None or not path.endswith(".py"):
        return {}
    try:
        return {name: function.digest for name, function in functions(content).items()}
    except (SyntaxError, ValueError):
        return {}


def installed(found: list[Changed], read: Read) -> dict[str, State]:
    """{entry: whether it is in} of a package, by its files below the import root.

    A function that a later entry changes again is as the last one that is in left it. Unknown where code is neither as
    it was before the entry nor as it, or one after it, made it, and where an entry changes no function.
    """
    paths = {name.rpartition(":")[0] for one in found for name in one.after}
    seen = {f"{path}:{name}": digest for path in paths for name, digest in digests(read(path), path).items()}
    states = dict[str, State]()
    for number, one in enumerate(found):
        later = [other.after for other in found[number:]]
        with_it = all(any(code.get(name, "") == seen.get(name) for code in later) for name in one.after)
        without = all(seen.get(name) == digest for name, digest in one.before.items())
        states[one.entry] = (
            "unknown" if not one.after else "patched" if with_it else "not patched" if without else "unknown"
        )
    return states
