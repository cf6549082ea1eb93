"""A patch as a mail in the form of ``git format-patch``: composed to bytes, and its fields found again by line."""

from __future__ import annotations

import datetime
import re
import textwrap
from email.errors import MessageError
from email.header import Header as Encoded
from email.header import decode_header, make_header
from email.utils import format_datetime
from typing import Any

from reproducers.base.errors import PatchlaneError

SENDER = "patchlane <patchlane@patchlane.invalid>"
MAGIC = f"From {'0' * 40} Mon Sep 17 00:00:00 2001"  # what git format-patch writes, and git am knows a patch by
VERSION = "patchlane 0.1.0"
WIDTH = 75
FIELDS = {
    "Pack": "pack",
    "Origin": "origin",
    "Bug": "bug",
    "Upstream-Status": "upstream_status",
    "Applies-To": "applies_to",
    "Remove-When": "remove_when",
    "Review-By": "review_by",
    "Patch": "patch",
    "Reproducer": "reproducer",
    "Validated": "validated",
    "Licence": "licence",
}
ENDS = re.compile(r"^(?:diff -|Index: |---|From |>From )", re.M)  # where git takes the message to be over
SWALLOWED = re.compile(r"(?:From|Date|Subject): ")  # what git takes for a header at a message's start
TRAILER = re.compile(r"^([A-Z][A-Za-z-]*): (.*)$")


def slug(subject: str) -> str:
    """The subject as a part of a file name, as git makes it."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", subject).strip("-.")[:52].rstrip("-.")


def _wrapped(text: str, first: str = "") -> str:
    fold = textwrap.TextWrapper(WIDTH, first, " " if first else "", break_long_words=False, break_on_hyphens=False)
    return fold.fill(" ".join(text.split()))


def message(paragraphs: list[str], trailers: list[tuple[str, str]]) -> str:
    """The commit message beneath the subject: why, then the fields, long ones folded.

    PatchlaneError for a line that git would not read as a part of it.
    """
    folded = [_wrapped(value, f"{name}: ") for name, value in trailers]
    text = "\n\n".join([*map(_wrapped, paragraphs), *(["\n".join(folded)] if folded else [])]) + "\n"
    if found := ENDS.search(text) or SWALLOWED.match(text):
        raise PatchlaneError(f"git would cut the message at {found[0]!r}", "reword the claim or the description")
    return text


def compose(subject: str, when: datetime.datetime | None, text: str, diff: bytes, sender: str = SENDER) -> bytes:
    """The mail. ``diff`` is carried as it is; without a day git takes the one on which it is applied."""
    title = subject if subject.isascii() else Encoded(subject, "utf-8", maxlinelen=900).encode()
    head = [
        MAGIC,
        f"From: {sender}",
        *([f"Date: {format_datetime(when)}"] if when else []),
        f"Subject: {title}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        "Content-Transfer-Encoding: 8bit",
    ]
    start = "\n".join([*head, "", text]) + "---\n" + diffstat(diff.decode(errors="replace")) + "\n"
    return start.encode() + diff.removesuffix(b"\n") + f"\n-- \n{VERSION}\n\n".encode()


def diffstat(diff: str) -> str:
    """Lines added and removed by file, as ``git diff --stat`` shows them; PatchlaneError for what is no diff."""
    from unidiff import PatchSet
    from unidiff.errors import UnidiffParseError

    try:
        files = PatchSet(diff)
    except UnidiffParseError as error:
        raise PatchlaneError(f"not a unified diff: {error}", "regenerate it with git diff") from error
    width = max((len(file.path) for file in files), default=0)
    rows = [f" {file.path:{width}} | {file.added + file.removed:4d} {_bar(file.added, file.removed)}" for file in files]
    total = f" {_count(len(files), 'file')} changed, {_count(files.added, 'insertion')}(+), "
    return "\n".join([*rows, f"{total}{_count(files.removed, 'deletion')}(-)", ""])


def _bar(added: int, removed: int, most: int = 30) -> str:
    """At least one sign for each kind of change there is."""
    scale = min(1.0, most / max(1, added + removed))
    return "".join(sign * (max(1, int(n * scale)) if n else 0) for sign, n in (("+", added), ("-", removed)))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def fields_of(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """({field: value}, {field: its line}) of an exported patch, values as text; PatchlaneError where it has no fields.

    Mail readers may fold the subject and the trailers: both are unfolded.
    """
    lines = text.splitlines()
    end = lines.index("---") if "---" in lines else len(lines)
    start = max((n for n, line in enumerate(lines[:end]) if not line.strip()), default=-1) + 1
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    for number, name, value in _unfolded(lines, start, end):
        field = FIELDS.get(name)
        if field is None:
            raise PatchlaneError(f"line {number}: {name} is no field of this header", f"one of: {', '.join(FIELDS)}")
        places.setdefault(field, number)
        if field in values and field != "validated":
            raise PatchlaneError(f"line {number}: {name} comes twice", f"keep it once; first on line {places[field]}")
        values[field] = [*values.get(field, []), value] if field == "validated" else _plain(field, number, value)
    values.setdefault("remove_when", "")
    for number, name, value in _unfolded(lines, 0, lines.index("") if "" in lines else 0):
        if name == "Subject":
            values["subject"] = re.sub(r"^\[[^\]]*\] ", "", _decoded(number, value))
            places["subject"] = number
    return values, places


def _decoded(number: int, subject: str) -> str:
    """A subject whose letters a mail had to encode."""
    try:
        return str(make_header(decode_header(subject)))
    except (LookupError, UnicodeError, MessageError) as error:
        raise PatchlaneError(
            f"line {number}: Subject: {error}", "write it as plain UTF-8 or as RFC 2047 says"
        ) from error


def _plain(field: str, number: int, value: str) -> str:
    """A value without the digest's name before it."""
    if field not in ("patch", "reproducer"):
        return value
    if not value.startswith("sha256:"):
        raise PatchlaneError(f"line {number}: {value!r} is no digest", "write sha256:DIGEST")
    return value.removeprefix("sha256:")


def _unfolded(lines: list[str], start: int, end: int) -> list[tuple[int, str, str]]:
    """(1-based line, name, value) of each field, continuation lines joined; PatchlaneError for any other line."""
    found: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines[start:end], start + 1):
        match = TRAILER.match(line)
        if match:
            found.append((number, match[1], match[2].strip()))
        elif line[:1] in " \t" and found:
            place, name, value = found.pop()
            found.append((place, name, f"{value} {line.strip()}"))
        elif line != MAGIC:
            raise PatchlaneError(f"line {number}: {line!r} is neither a field nor goes on with one", "Field: value")
    return found
