"""A carried patch as the beginning of a pack's fix: theirs, in the layout and under the header that a pack has."""

from __future__ import annotations

import re

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import temporary
from reproducers.carried.entry import PATCH, Carried
from reproducers.carried.patches.diffs import FileDiff
from reproducers.desk.rules.patch.headers import YOCTO
from reproducers.desk.start.skeleton import Theirs
from reproducers.upstream import patching

STATED = re.compile(r"https://\S*\b[0-9a-f]{40}\b\S*|[\w.-]+/[\w.-]+@[0-9a-f]{40}")  # where a patch may be compared


def theirs(entry: Carried) -> Theirs:
    """The entry as a new pack takes it; what is not stated is left to be written.

    PatchlaneError with the patch's path for what no fix of a pack may hold: a mode, a binary file, text that is no
    UTF-8, words that deceive the probe.
    """
    diff = b"".join(map(_laid_out, entry.diff.files))
    with temporary() as scratch:
        tried = scratch / PATCH
        tried.write_bytes(diff)
        try:
            patching.files(tried)
        except PatchlaneError as error:
            remedy = "carry it as it is, or write the fix without it and begin with python -m reproducers.new"
            raise PatchlaneError(error.what.replace(str(tried), str(entry.patch)), remedy) from error
    named = STATED.fullmatch(entry.origin)
    where = named[0] if named else "<write OWNER/NAME@SHA, or a URL with the full SHA>"
    word = entry.upstream_status.partition(" ")[0].rstrip(":,")
    status = entry.upstream_status if word in YOCTO else "Pending"
    return Theirs(entry.subject, f"{where} (<write its licence>)", status, diff.decode())


def _laid_out(file: FileDiff) -> bytes:
    """A file's diff in git's own form, by its path in the repository."""
    if file.raw.startswith(b"diff --git a/"):
        return file.raw
    source, target = (name.encode() if name else None for name in (file.source, file.target))
    rows = [b"diff --git a/%s b/%s\n" % (source or target or b"", target or source or b"")]
    rows += [b"new file mode 100644\n"] if source is None else [b"deleted file mode 100644\n"] if target is None else []
    rows += [
        b"--- a/%s\n" % source if source else b"--- /dev/null\n",
        b"+++ b/%s\n" % target if target else b"+++ /dev/null\n",
    ]
    for hunk in file.hunks:
        rows.append(b"@@ -%d,%d +%d,%d @@\n" % (hunk.old, len(hunk.before), hunk.new, len(hunk.after)))
        rows += [
            sign.encode() + text + (b"" if text.endswith(b"\n") else b"\n\\ No newline at end of file\n")
            for sign, text in hunk.rows
        ]
    return b"".join(rows)
