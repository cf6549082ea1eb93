"""A moved queue as files: mails or diffs that git takes in order, a quilt ``series``; and what of it is left."""

from __future__ import annotations

import re
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import temporary, within
from patchlane.base.wording import short
from reproducers.carried.meeting.judging import Changes
from reproducers.carried.meeting.trees import Tree
from reproducers.carried.moving import Moved
from reproducers.carried.patches import mails
from reproducers.desk.patches.mail import slug
from reproducers.upstream.git import git, git_bytes

PACKED = re.compile(rb"(?im)^(Content-Transfer-Encoding: *).*?(?=\r?$)")
SIGNATURE = b"-- \npatchlane\n\n"  # ends a mail's diff


def series(moved: list[Moved], target: Tree) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """({file: bytes} of the new series, {file: bytes} of what is left of each entry).

    PatchlaneError where git does not make of the series what the merge made.
    """
    files, left = dict[str, bytes](), dict[str, bytes]()
    with temporary() as scratch, temporary() as proof:
        for place in (scratch, proof):
            git("init", "-q", str(place))
            for one in reversed(moved):  # the first entry that touches a file has it as the target has it
                _lay_out(place, one, one.before, first=True)
        for number, one in enumerate(moved, 1):
            name = f"{number:04d}-{slug(one.entry.subject) or 'patch'}.patch"
            diff, as_given = _diff(scratch, one), b"".join(file.raw for file in one.verbatim)
            if diff:
                _prove(proof, one, _text(one, diff))
            if diff + as_given:
                files[name] = _text(one, diff + as_given)
            if one.left:
                left[name] = _text(one, b"".join(rest.raw for rest in one.left))
    mailed = all(mails.HEADERS.match(data) for data in files.values())
    how = f"git {'am' if mailed else 'apply'} *.patch in a checkout, or quilt push -a"
    return files | {"series": "\n".join([f"# {short(target.label)}: {how}", *files, ""]).encode()}, left


def _lay_out(folder: Path, one: Moved, files: Changes, first: bool) -> None:
    """Write files as they are before an entry (``first``) or after it, executable where the entry says so."""
    modes = {file.path: file.modes for file in one.entry.diff.files if file.modes}
    for name, data in files.items():
        path = within(folder, name)
        if data is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        mode = modes[name][0 if first else -1] if name in modes else ""
        path.chmod(0o755 if mode == "100755" else 0o644)


def _diff(folder: Path, one: Moved) -> bytes:
    """What an entry changes, as git writes it."""
    trees = []
    for files, first in ((one.before, True), (one.after, False)):
        _lay_out(folder, one, files, first)
        git("add", "-A", "-f", cwd=folder)
        trees.append(git("write-tree", cwd=folder).stdout.strip())
    return git_bytes("diff-tree", "-p", "-M", "--binary", "--full-index", *trees, cwd=folder).stdout


def _text(one: Moved, diff: bytes) -> bytes:
    """The entry's own words above the diff; of a mail without its diffstat, which is of the old one."""
    text = mails.body(one.entry.given.data)
    head = text[: one.entry.diff.start]
    if not mails.HEADERS.match(text):
        return head + diff
    ends = [match.start() for match in mails.BELOW.finditer(head)]
    message = head[: ends[-1]] if ends else head
    if text != one.entry.given.data:  # it was packed for its way, and is so no more
        message = PACKED.sub(rb"\g<1>8bit", message, count=1)
    return message + b"---\n\n" + diff + SIGNATURE


def _prove(folder: Path, one: Moved, patch: bytes) -> None:
    """Apply a patch by git, and compare each file with the merge's."""
    with temporary() as scratch:
        (scratch / "moved.patch").write_bytes(patch)
        done = git("apply", "--whitespace=nowarn", str(scratch / "moved.patch"), cwd=folder)
    images = {path: _read(within(folder, path)) for path in one.after}
    if done.returncode or images != one.after:
        said = " ".join(done.stderr.split())[:200] or "it makes another file than the merge"
        remedy = "report it with the patch; the originals are as they were"
        raise PatchlaneError(f"{one.entry.id}: git apply of the moved patch: {said}", remedy)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
