"""Patches as people keep them: mails of ``git format-patch``, mailboxes, quilt series, plain diffs, a branch.

What is read stays as it was given, byte for byte; what holds no diff is named, not dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from pathlib import Path
from typing import NamedTuple

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import bytes_of, within
from patchlane.base.wording import printable
from reproducers.carried.patches.diffs import Diff, Remark
from reproducers.carried.patches.reader import is_utf8, parse
from reproducers.upstream.git import git, git_bytes

SERIES = "series"  # the file of a quilt queue that names its patches in order
ENVELOPE = re.compile(rb"^From \S+ +\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}\r?$", re.M)
HEADERS = re.compile(rb"(?:From [^\n]*\n)?(?:[A-Za-z][\w-]*:[^\n]*\n(?:[ \t]+[^\n]*\n)*)+\r?\n")
TAG = re.compile(r"^\s*(?:\[[^\]]*\]\s*)+")
BELOW = re.compile(rb"^---\r?\n", re.M)  # ends a mail's message
PACKED = ("quoted-printable", "base64")  # how a mail may write its bytes


class Given(NamedTuple):
    """A patch as it was given: a name for people, its bytes, and git's ``-p`` where a series states one.

    ``part`` is the path of its one file where it is a part of a larger patch.
    """

    name: str
    data: bytes
    strip: int | None = None
    part: str | None = None


class Said(NamedTuple):
    """What a patch says of itself above its diff, "" for what it does not say."""

    subject: str
    author: str
    status: str


def files(paths: list[Path]) -> list[Given]:
    """The patches of files, mailboxes and folders with a quilt ``series``, in order.

    PatchlaneError for a path that cannot be read, and for a series that names what is not there.
    """
    found = list[Given]()
    for path in paths:
        found += _series(path) if path.is_dir() else _mailbox(path.name, _read(path), None)
    return found


def branch(clone: Path, base: str, name: str) -> tuple[list[Given], list[str]]:
    """(a patch for each commit of a branch since ``base``, what of it is no patch), as git format-patch writes them."""
    if git("merge-base", "--is-ancestor", base, name, cwd=clone).returncode:
        raise PatchlaneError(f"{clone}: {name} does not come from {base[:12]}", f"git -C {clone} rebase {base} {name}")
    done = git_bytes("format-patch", "--stdout", "--full-index", "--binary", f"{base}..{name}", cwd=clone)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise PatchlaneError(f"git format-patch: {said[:200]}", f"git -C {clone} log {base}..{name}")
    merges = git("rev-list", "--merges", f"{base}..{name}", cwd=clone).stdout.split()
    said_of = [
        f"{name}: {sha[:12]} is a merge, of which format-patch makes no patch: rebase to keep it" for sha in merges
    ]
    return _mailbox(name, done.stdout, None), said_of


def parts(one: Given) -> list[Given]:
    """A patch of several files as one patch a file, each under the text above the whole."""
    text = body(one.data)
    diff = parse(text, one.name, one.strip)
    return [Given(one.name, text[: diff.start] + file.raw, one.strip, file.path) for file in diff.files]


def body(data: bytes) -> bytes:
    """The text of a mail whose bytes are packed for their way; any other patch as it is."""
    if not HEADERS.match(data):
        return data
    mail = message_from_bytes(data)
    texts = [part for part in mail.walk() if not part.is_multipart()]
    if len(texts) == 1 and str(mail["Content-Transfer-Encoding"]).strip().lower() not in PACKED:
        return data
    payloads = [part.get_payload(decode=True) for part in texts]
    head = HEADERS.match(data)
    assert head is not None
    return head[0] + b"\n".join(payload for payload in payloads if isinstance(payload, bytes))


def said(one: Given, diff: Diff) -> Said:
    """What stands above the diff: a mail's headers, DEP-3's fields, or the first line of a text."""
    head = body(one.data)[: diff.start]
    mail = message_from_bytes(head)
    status = re.search(rb"^Upstream-Status: *(.*?)\r?$", head, re.M)
    subject = TAG.sub("", _decoded(mail, "Subject")) or _decoded(mail, "Description") or _first(head)
    text = printable(status[1].decode(errors="replace").strip()) if status else ""
    return Said(subject or Path(one.part or one.name).stem, _decoded(mail, "From") or _decoded(mail, "Author"), text)


def remarks(one: Given, diff: Diff) -> list[Remark]:
    """What has to be known of the patch's lines, those above its diff among them."""
    text, found = body(one.data), list(diff.remarks)
    if text != one.data:
        found.append(Remark(1, "packed for its way: lines are counted in the text that git am reads"))
    ends = [match.start() for match in BELOW.finditer(text)]
    if ends and diff.start < ends[-1]:
        line = text[: diff.start].count(b"\n") + 1
        found.append(Remark(line, "diff text in the message: git am ends the message here and applies it"))
    if any(row > 127 for row in text[: diff.start]) and b"\xef\xbf\xbd" not in text and not is_utf8(text[: diff.start]):
        found.append(Remark(1, "the text above the diff is no UTF-8: read as Latin-1"))
    return sorted(found)


def _read(path: Path) -> bytes:
    try:
        return bytes_of(path)
    except OSError as error:
        raise PatchlaneError(
            f"{path}: {error.strerror}", "name patches, a mailbox or a folder with a series"
        ) from error


def _mailbox(name: str, data: bytes, strip: int | None) -> list[Given]:
    """The mails of a file; a file with one or none of them is one patch."""
    starts = [match.start() for match in ENVELOPE.finditer(data)]
    starts = [at for at in starts if at == 0 or data[:at].endswith((b"\n\n", b"\r\n\r\n"))]
    if len(starts) < 2:
        return [Given(name, data, strip)]
    begins = [0, *starts[1:]]
    return [
        Given(f"{name}#{number}", data[at:end], strip)
        for number, (at, end) in enumerate(zip(begins, [*begins[1:], len(data)], strict=True), 1)
    ]


def _series(folder: Path) -> list[Given]:
    listed = folder / SERIES
    if not listed.is_file():
        raise PatchlaneError(f"{folder} has no file {SERIES}", f"name its patches: {folder}/*.patch")
    found = list[Given]()
    for number, row in enumerate(_read(listed).decode(errors="replace").splitlines(), 1):
        words = row.partition("#")[0].split()
        if not words:
            continue
        strip, where = None, f"{listed}:{number}"
        for word in words[1:]:
            if not re.fullmatch(r"-p\d+", word):
                raise PatchlaneError(f"{where}: {word} is no -pN", "turn the patch round in its file, then take -R out")
            strip = int(word[2:])
        path = within(folder, words[0])
        if not path.is_file():
            raise PatchlaneError(f"{where}: {folder} has no {words[0]}", f"take it out of {SERIES}, or bring the file")
        found += _mailbox(words[0], _read(path), strip)
    if not found:
        raise PatchlaneError(f"{listed}:1: it names no patch", "one file name a line")
    return found


def _decoded(mail: Message, name: str) -> str:
    value = next((str(value) for key, value in mail.raw_items() if key.lower() == name.lower()), "")
    try:
        text = str(make_header(decode_header(value))) if "=?" in value else _plain(value)
    except (MessageError, LookupError, ValueError):
        text = _plain(value)
    return printable(" ".join(text.split()))


def _plain(value: str) -> str:
    data = value.encode("utf-8", "surrogateescape")
    return data.decode() if is_utf8(data) else data.decode("latin-1")


def _first(head: bytes) -> str:
    rows: Iterator[str] = (row.strip() for row in head.decode(errors="replace").splitlines())
    return next(
        (printable(row) for row in rows if row and not row.startswith(("From ", "---", "#", "Index:", "==="))), ""
    )
