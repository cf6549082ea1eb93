"""All that a person reads before posting and then posts or attaches, as files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from reproducers.base.errors import PatchlaneError
from reproducers.base.files import write_atomic
from reproducers.desk.attachment import export
from reproducers.desk.patches import mail, short_header
from reproducers.desk.text import render
from reproducers.desk.text.lookups import Facts
from reproducers.desk.text.render import forms
from reproducers.record.schema import Pack

AUTHOR = "FULL NAME <EMAIL>"  # of whoever files: git commit --amend --reset-author
__all__ = ["commit", "digest", "files", "forms", "sums", "write"]


def files(pack: Pack, receipts: Path, form: str) -> dict[str, bytes]:
    """{name: content}: the text, its title, the reproducer as one file, the receipt's log, the patch if there is one.

    PatchlaneError for a form that the pack cannot take and for what no receipt holds.
    """
    found = {
        f"{form}.md": render.render(pack, receipts, form).encode(),
        "title.txt": (render.title(pack, form, receipts) + "\n").encode(),
        f"{pack.id}.py": export.render(pack).encode(),
        f"{pack.id}.log": Facts(pack, receipts).log,
    }
    if pack.patch.is_file():
        found[f"{pack.id}.patch"] = commit(render.patch(pack), pack)
    return found


def commit(patch: Path, pack: Pack) -> bytes:
    """The patch as the commit for upstream, as ``git am`` takes it: what and why, the author left to be filled in."""
    short = short_header.read(patch)
    paragraphs = short.description or [pack.claim]
    return mail.compose(short.field("Subject"), None, mail.message(paragraphs, []), short.diff, AUTHOR)


def digest(found: dict[str, bytes]) -> str:
    """sha256 over names and contents, in the order of names."""
    return hashlib.sha256(json.dumps(sums(found), sort_keys=True).encode()).hexdigest()


def sums(found: dict[str, bytes]) -> dict[str, str]:
    """{name: sha256} of the files, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(found.items())}


def write(folder: Path, found: dict[str, bytes]) -> Path:
    """The files, alone in ``folder``; PatchlaneError where it holds others."""
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in found) if folder.is_dir() else []
    stale = [name for name in strangers if name not in {f"{form}.md" for form in render.FORMS}]
    if stale:
        raise PatchlaneError(f"{folder} holds other files: {', '.join(stale)}", "--out with another folder")
    for name in strangers:
        (folder / name).unlink()
    for name, content in found.items():
        write_atomic(folder / name, content)
    return folder
