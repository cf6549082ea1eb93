"""The files that a person reads before posting, and then posts or attaches."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from pathlib import Path

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import replacing
from reproducers.desk import unwritten
from reproducers.desk.attachment import export
from reproducers.desk.patches import mail, short_header
from reproducers.desk.text import render
from reproducers.desk.text.render import forms
from reproducers.record.schema import Pack

AUTHOR = "FULL NAME <EMAIL>"  # of whoever files: git commit --amend --reset-author
OURS = re.compile(rf"(?:{'|'.join(render.FORMS)})\.md|pack\d+[\w.-]*\.(?:log|patch|py)")  # of another form or receipt
__all__ = ["commit", "digest", "files", "forms", "sums", "write"]


def files(pack: Pack, receipts: Path, form: str) -> dict[str, bytes]:
    """{name: content}: the text, its title, the exported reproducer, the logs quoted, and the patch if there is one.

    Raises PatchlaneError for a form that the pack cannot take, and for a value that no receipt holds.
    """
    unwritten.refuse([pack])
    text, facts = render.rendered(pack, receipts, form)
    contents = {
        f"{form}.md": text.encode(),
        "title.txt": (render.title(pack, form, receipts) + "\n").encode(),
        f"{pack.id}.py": export.render(pack).encode(),
        **facts.logs,
    }
    if pack.patch.is_file():
        contents[f"{pack.id}.patch"] = commit(render.patch(pack), pack)
    if form == "pr" and pack.tests_patch.is_file():
        contents[f"{pack.id}-tests.patch"] = commit(pack.tests_patch, pack)
    return contents


def commit(patch: Path, pack: Pack) -> bytes:
    """The commit for upstream as ``git am`` takes it: subject, reason and diff. The author is left to be filled in."""
    short = short_header.read(patch)
    paragraphs = short.description or [pack.claim]
    return mail.compose(short.field("Subject"), None, mail.message(paragraphs, []), short.diff, AUTHOR)


def digest(contents: dict[str, bytes]) -> str:
    """sha256 over names and contents, sorted by name."""
    return hashlib.sha256(json.dumps(sums(contents), sort_keys=True).encode()).hexdigest()


def sums(contents: dict[str, bytes]) -> dict[str, str]:
    """{name: sha256} of the files, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    """Make ``folder`` hold these files only, whole or not at all, and return it.

    Raises PatchlaneError if it holds files of another kind, or where the host refuses.
    """
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in contents) if folder.is_dir() else []
    stale = [name for name in strangers if not OURS.fullmatch(name)]
    if stale:
        raise PatchlaneError(f"{folder} holds other files: {', '.join(stale)}", "--out with another folder")
    absent = not folder.exists()
    try:
        with disk.writing(folder, "--out DIR names another folder, with room"), contextlib.ExitStack() as all_of_them:
            for name, content in contents.items():
                all_of_them.enter_context(replacing(folder / name)).write_bytes(content)
    finally:
        if absent and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for name in strangers:
        (folder / name).unlink()
    return folder
