"""A patch's bytes as ``git apply`` reads them, line by line; every fault and remark with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import astray
from reproducers.carried.patches.diffs import LINKS, Diff, FileDiff, Hunk, Remark

HEADER = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
TEMPLATE = re.compile(rb"(?<![\w.@])@[A-Za-z_]\w*@(?![\w@])")
ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
ABSENT = b"/dev/null"
EXTENDED = re.compile(
    rb"(old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to|similarity index"
    rb"|dissimilarity index|index) (.*)"
)


def parse(data: bytes, name: str, strip: int | None = None) -> Diff:
    """The files of a patch. ``strip``: git's ``-p``, None where the paths are to say it.

    PatchlaneError with ``name`` and the line for what is no patch, and for a path that leads out of the tree.
    """
    remarks = list[Remark]()
    if b"\r\n" in data and all(row.endswith(b"\r") for row in data.split(b"\n") if row.startswith((b"@@ -", b"--- "))):
        data = data.replace(b"\r\n", b"\n")
        remarks.append(Remark(1, "every line ends in CR LF, a mail's transport say: read as git am does, without CR"))
    reader = _Reader(data, name, strip)
    files = tuple(reader.files())
    return Diff(files, tuple(sorted([*remarks, *reader.remarks])), reader.start)


class _Reader:
    def __init__(self, data: bytes, name: str, strip: int | None) -> None:
        self.rows, self.name, self.strip = _lines(data), name, strip
        self.at, self.remarks, self.start = 0, list[Remark](), len(data)

    def fault(
        self, what: str, remedy: str = "make it anew with git diff or git format-patch", at: int = -1
    ) -> PatchlaneError:
        return PatchlaneError(f"{self.name}:{(self.at if at < 0 else at) + 1}: {what}", remedy)

    def remark(self, what: str, at: int | None = None) -> None:
        self.remarks.append(Remark((self.at if at is None else at) + 1, what))

    def row(self, ahead: int = 0) -> bytes:
        return self.rows[self.at + ahead] if self.at + ahead < len(self.rows) else b""

    def files(self) -> Iterator[FileDiff]:
        while self.at < len(self.rows):
            row = self.row()
            plain = row.startswith(b"--- ") and self.row(1).startswith(b"+++ ") and self.row(2).startswith(b"@@ -")
            if row.startswith(b"diff --git ") or plain:
                self.start = min(self.start, sum(map(len, self.rows[: self.at])))
                yield self._file(plain)
            elif HEADER.match(row):
                raise self.fault("a hunk of no file: the lines --- and +++ are missing above it")
            else:
                if row.startswith(b"*** ") and self.row(1).startswith(b"--- ") and self.row(2).startswith(b"***"):
                    raise self.fault("a context diff, which git does not read", "diff -u")
                self.at += 1

    def _file(self, plain: bool) -> FileDiff:
        first, said, modes, names = self.at, dict[str, str](), list[str](), list[bytes]()
        blobs: tuple[str, str] | None = None
        if not plain:
            self.at += 1
            while match := EXTENDED.match(self.row()):
                word, value = match[1].decode(), match[2]
                if "mode" in word:
                    modes.append(value.strip().decode(errors="replace"))
                if word == "index" and (index := re.match(rb"([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d+))?", value)):
                    blobs = (index[1].decode(), index[2].decode())
                    modes += [index[3].decode()] if index[3] else []
                said[word] = _text(value)
                self.at += 1
        binary = False
        if self.row().startswith(b"--- ") and self.row(1).startswith(b"+++ "):
            names = [_name(self.row(0)[4:]), _name(self.row(1)[4:])]
            self.at += 2
        elif self.row().startswith((b"GIT binary patch", b"Binary files ")):
            binary = True
            whole = self.row().startswith(b"GIT")
            self.remark(
                "binary: judged whole, by git's SHA"
                if whole
                else "a binary file without its content: nothing can apply it"
            )
            self._skip_binary()
        hunks = tuple(self._hunks())
        pair = self._paths(first, said, names)
        self._say(first, said, modes, pair)
        raw = b"".join(self.rows[first : self.at])
        return FileDiff(*pair, first + 1, raw, hunks, blobs, tuple(modes), binary, "copy to" in said)

    def _skip_binary(self) -> None:
        self.at += 1
        while self.at < len(self.rows) and not self.row().startswith((b"diff --git ", b"--- ", b"-- ", b"From ")):
            self.at += 1

    def _hunks(self) -> Iterator[Hunk]:
        number = 0
        while match := HEADER.match(self.row()):
            number += 1
            head, (old, before, new, after) = self.at, (int(group) if group else 1 for group in match.groups())
            rows = list[tuple[str, bytes]]()
            self.at += 1
            while before > 0 or after > 0:
                row = self.row()
                sign = chr(row[0]) if row.strip(b"\r\n") else " "  # some mailers take the blank of an empty line
                if not row or sign not in " +-":
                    raise self.fault(
                        f"hunk {number} ends early: {before} lines before and {after} after are missing", at=head
                    )
                before, after = before - (sign != "+"), after - (sign != "-")
                rows.append((sign, row[1:] if row.strip(b"\r\n") else row))
                self.at += 1
                if self.row().startswith(b"\\ "):
                    rows[-1] = (sign, rows[-1][1].removesuffix(b"\n"))
                    self.at += 1
            if before < 0 or after < 0:
                raise self.fault(f"hunk {number} has another number of lines than its header says", at=head)
            hunk = Hunk(number, head + 1, old, new, tuple(rows))
            self._say_of_rows(head, hunk)
            yield hunk

    def _say_of_rows(self, head: int, hunk: Hunk) -> None:
        if hunk.old > 1 and not any(sign == " " for sign, _ in hunk.rows):
            self.remark(f"hunk {hunk.number} has no context: git apply asks for --unidiff-zero", head)
        if any(text.endswith(b"\r\n") for _, text in hunk.rows):
            self.remark(f"hunk {hunk.number} has lines that end in CR LF", head)
        if not all(is_utf8(text) for _, text in hunk.rows):
            self.remark(f"hunk {hunk.number} has text that is no UTF-8, kept as it is", head)
        for row, (sign, text) in enumerate(hunk.rows):
            if sign == "+" and (word := TEMPLATE.search(text)):
                self.remark(
                    f"a template, {word[0].decode()}, that a build fills in: judged as it stands", head + 1 + row
                )

    def _paths(self, first: int, said: dict[str, str], names: list[bytes]) -> tuple[str | None, str | None]:
        for word in ("rename", "copy"):
            if not names and {f"{word} from", f"{word} to"} <= said.keys():
                return self._checked(said[f"{word} from"], first), self._checked(said[f"{word} to"], first)
        if not names:
            both = self.rows[first][len(b"diff --git ") :].strip()
            half = re.fullmatch(rb'"?a/(.+?)"? "?b/\1"?', both) or re.fullmatch(rb"(.+) \1", both)
            if half is None:
                raise self.fault("the header names two files and no line says which is which", at=first)
            names = [b"a/" + half[1], b"b/" + half[1]] if b"b/" in both else [half[1], half[1]]
            names[0] = ABSENT if "new file mode" in said else names[0]
            names[1] = ABSENT if "deleted file mode" in said else names[1]
        strip = self.strip if self.strip is not None else _depth(names)
        inner = [None if name == ABSENT else _stripped(name, strip) for name in names]
        return self._checked(inner[0], first), self._checked(inner[1], first)

    def _checked(self, name: str | None, at: int) -> str | None:
        if name is not None and (why := astray(name) if name else "names no file below the folder that is stripped"):
            raise self.fault(f"{name!r} {why}", "do not use this patch, or correct the path in it", at)
        return name

    def _say(self, first: int, said: dict[str, str], modes: list[str], pair: tuple[str | None, str | None]) -> None:
        if LINKS & set(modes):
            self.remark("a link or a submodule: what it points to is no text to judge", first)
        elif {"old mode", "new mode"} <= said.keys():
            self.remark(f"changes the mode of {pair[1]}, {said['old mode']} to {said['new mode']}", first)
        if {"rename from", "rename to"} <= said.keys():
            self.remark(f"renames {pair[0]} to {pair[1]}", first)


def _lines(data: bytes) -> list[bytes]:
    """The lines of a patch: a CR alone ends none."""
    return [row + b"\n" for row in data.split(b"\n")[:-1]] + ([last] if (last := data.split(b"\n")[-1]) else [])


def _text(value: bytes) -> str:
    return _unquoted(value.strip()).decode(errors="surrogateescape")


def _name(value: bytes) -> bytes:
    """The name in a line --- or +++, without what follows a tab, and unquoted."""
    return _unquoted(value.rstrip(b"\r\n") if value.startswith(b'"') else value.rstrip(b"\r\n").partition(b"\t")[0])


def _unquoted(value: bytes) -> bytes:
    if not (len(value) > 1 and value.startswith(b'"') and value.endswith(b'"')):
        return value
    return re.sub(
        rb"\\([0-7]{3}|.)",
        lambda m: bytes([int(m[1], 8) & 255 if m[1].isdigit() else ESCAPES.get(m[1], m[1][0])]),
        value[1:-1],
    )


def _depth(names: list[bytes]) -> int:
    """1 where the names begin with folders that differ, as a/ and b/ do, else 0: then both are the path itself."""
    tops = [name.partition(b"/")[0] for name in names if name != ABSENT]
    return int(any(top in (b"a", b"b") for top in tops) or len(set(tops)) > 1)


def _stripped(name: bytes, strip: int) -> str:
    return "/".join(name.decode(errors="surrogateescape").split("/")[strip:])


def is_utf8(text: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
