"""pip's RECORD of a distribution: a row for each of its files, with digest and size."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from pathlib import Path


def record_of(root: Path, name: str, version: str) -> Path | None:
    """The RECORD of the distribution installed in a folder of packages, None where pip recorded no files."""
    from packaging.utils import canonicalize_name

    for info in sorted(root.glob("*.dist-info")):
        stem, _, stated = info.name.removesuffix(".dist-info").rpartition("-")
        if canonicalize_name(stem) == canonicalize_name(name) and stated == version:
            return info / "RECORD" if (info / "RECORD").is_file() else None
    return None


def updated(text: str, contents: dict[str, bytes | None]) -> str:
    """The RECORD with the rows of these files as they will be; all other rows stay as they are, letter by letter."""
    rows, left = list[str](), dict(contents)
    for line in text.splitlines(keepends=True):
        name = next(csv.reader([line]), [""])[0]
        if name not in contents:
            rows.append(line)
            continue
        content = left.pop(name, None)
        if content is not None:
            rows.append(_row(name, content) + line[len(line.rstrip("\r\n")) :])
    end = "\r\n" if rows and rows[-1].endswith("\r\n") else "\n"
    if rows and not rows[-1].endswith("\n"):
        rows[-1] += end
    return "".join([*rows, *(_row(name, content) + end for name, content in left.items() if content is not None)])


def _row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([name, f"sha256={digest}", len(content)])
    return out.getvalue()
