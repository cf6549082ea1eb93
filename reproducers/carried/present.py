"""Which patches of a carried queue an environment has, as the audit asks it; nothing of the environment is run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from patchlane.base.files import bytes_of
from patchlane.known import data
from patchlane.present import environment
from reproducers.carried.changed import Changed, digests
from reproducers.carried.entry import Carried
from reproducers.carried.meeting.judging import Read

State = Literal["patched", "not patched", "unknown"]


def said(entries: list[Carried], python: Path | None) -> str:
    """A line that counts the patches that are in, then one for each that is not. ``python`` as the audit takes it."""
    found = [
        Changed(entry.id, *({n: pair[at] for n, pair in entry.functions.items()} for at in (0, 1))) for entry in entries
    ]
    states = installed(found, _reader(found, entries[0], python))
    number = sum(state == "patched" for state in states.values())
    rows = [f"  {state:12}{name}" for name, state in states.items() if state != "patched"]
    return "\n".join([f"patched: theirs {number} of {len(entries)}, {entries[0].folder.parent.name}", *rows])


def _reader(found: list[Changed], entry: Carried, python: Path | None) -> Read:
    """Reads the files that an import in the environment would take."""
    known = data.known(None)
    like = next(iter(known.packs.values()))
    tops = {name.partition("/")[0] for one in found for name in one.after}
    asked = {
        top: dataclasses.replace(like, package=top, distribution=entry.upstream.distribution, trees=()) for top in tops
    }
    seen = environment.of_python(
        python, dataclasses.replace(known, index=dataclasses.replace(known.index, packs=asked))
    )

    def read(path: str) -> bytes | None:
        file = seen.file(path)
        return bytes_of(file) if file and file.is_file() else None

    return read


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
