"""Run a pack with another patch: its own without one hunk, or with the change of a mutant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unidiff import PatchSet

from patchlane.base.files import temporary
from reproducers.record.schema import RELEASES, Pack
from reproducers.trial.experiment import Request, Run, execute
from reproducers.upstream.patching import NOTHING
from reproducers.upstream.store import Store


def without_hunk(patch: str, dropped: int) -> str:
    """The patch text without hunk number ``dropped`` (0-based, over all files); later hunks get new line numbers."""
    files, text, number = PatchSet(patch), "", 0
    for file in files:
        shift, rows = 0, ""
        for hunk in file:
            if number == dropped:
                shift = hunk.target_length - hunk.source_length
            else:
                start = hunk.target_start - shift
                span = f"-{hunk.source_start},{hunk.source_length} +{start},{hunk.target_length}"
                rows += f"@@ {span} @@\n" + "".join(str(line) for line in hunk)
            number += 1
        if rows:
            text += f"--- {file.source_file}\n+++ {file.target_file}\n{rows}"
    return text


def with_patch(pack: Pack, text: str, folder: Path) -> Pack:
    """The same pack with another patch, which may be empty, in a folder of its own with the same needs and releases."""
    copy = folder / pack.folder.name
    copy.mkdir(parents=True)
    for name in ("pack.yaml", "reproducer.py"):
        (copy / name).symlink_to(pack.folder / name)
    for name in ("needs.yaml", RELEASES):
        (folder / name).symlink_to(pack.folder.parent / name)
    (copy / "fix.patch").write_text(text or NOTHING)
    return pack.model_copy(update={"folder": copy})


def attempt(pack: Pack, text: str, request: Request) -> Run:
    """A run of the pack with another patch."""
    with temporary() as scratch:
        return execute(with_patch(pack, text, Path(scratch)), request, Store(), lambda arm, line: None)


def ablations(pack: Pack) -> Iterator[tuple[str, str]]:
    """(name of a hunk, patch text without this hunk) for each hunk."""
    text = pack.patch.read_text()
    names = [f"{file.path} hunk {n}" for file in PatchSet(text) for n, _ in enumerate(file, 1)]
    for number, name in enumerate(names):
        yield name, without_hunk(text, number)
