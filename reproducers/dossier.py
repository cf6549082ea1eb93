"""All that a person reads before posting and then posts or attaches, as files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from reproducers import export, render
from reproducers.errors import PatchlaneError
from reproducers.facts import Facts
from reproducers.patch_header import mail
from reproducers.render import forms
from reproducers.schema import Pack
from reproducers.store import write_atomic

__all__ = ["digest", "files", "forms", "sums", "write"]


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
        _, found[f"{pack.id}.patch"] = mail(pack, "live", Facts(pack, receipts).entry, receipts)
    return found


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
