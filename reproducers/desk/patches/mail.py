"""A patch as a mail in the form of ``git format-patch``, composed to bytes."""

from __future__ import annotations

import datetime
import re
import textwrap
from email.header import Header as Encoded
from email.utils import format_datetime

from patchlane.base.errors import PatchlaneError
from patchlane.base.wording import count

SENDER = "patchlane <patchlane@patchlane.invalid>"
MAGIC = f"From {'0' * 40} Mon Sep 17 00:00:00 2001"  # git format-patch writes it, and git am knows a patch by it
VERSION = "patchlane 0.1.0"
WIDTH = 75
ENDS = re.compile(r"^(?:diff -|Index: |---|From |>From )", re.M)  # here git ends the message
SWALLOWED = re.compile(r"(?:From|Date|Subject): ")  # git takes these for headers at a message's start


def slug(subject: str) -> str:
    """The subject as a part of a file name, as git makes it."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", subject).strip("-.")[:52].rstrip("-.")


def _wrapped(text: str, first: str = "") -> str:
    fold = textwrap.TextWrapper(WIDTH, first, " " if first else "", break_long_words=False, break_on_hyphens=False)
    return fold.fill(" ".join(text.split()))


def message(paragraphs: list[str], trailers: list[tuple[str, str]]) -> str:
    """The commit message beneath the subject: the paragraphs, then the fields, long ones folded.

    PatchlaneError for a line at which git would cut the message.
    """
    folded = [_wrapped(value, f"{name}: ") for name, value in trailers]
    text = "\n\n".join([*map(_wrapped, paragraphs), *(["\n".join(folded)] if folded else [])]) + "\n"
    if cut := ENDS.search(text) or SWALLOWED.match(text):
        raise PatchlaneError(f"git would cut the message at {cut[0]!r}", "reword the claim or the description")
    return text


def compose(subject: str, when: datetime.datetime | None, text: str, diff: bytes, sender: str = SENDER) -> bytes:
    """The mail. ``diff`` is carried unchanged; without ``when`` git dates the commit by the day it is applied."""
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
    """Lines added and removed by file, as ``git diff --stat`` shows them; PatchlaneError if it is no diff."""
    from unidiff import PatchSet
    from unidiff.errors import UnidiffParseError

    try:
        files = PatchSet(diff)
    except UnidiffParseError as error:
        raise PatchlaneError(f"not a unified diff: {error}", "regenerate it with git diff") from error
    width = max((len(file.path) for file in files), default=0)
    rows = [f" {file.path:{width}} | {file.added + file.removed:4d} {_bar(file.added, file.removed)}" for file in files]
    total = f" {count(len(files), 'file')} changed, {count(files.added, 'insertion')}(+), "
    return "\n".join([*rows, f"{total}{count(files.removed, 'deletion')}(-)", ""])


def _bar(added: int, removed: int, most: int = 30) -> str:
    """At least one sign for each kind of change there is."""
    scale = min(1.0, most / max(1, added + removed))
    return "".join(sign * (max(1, int(n * scale)) if n else 0) for sign, n in (("+", added), ("-", removed)))
