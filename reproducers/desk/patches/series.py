"""A folder of patches that stack, with their headers and a quilt ``series`` file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import swap
from reproducers.record.schema import ROOT

if TYPE_CHECKING:
    from reproducers.desk.patches.order import Choice, Member
    from reproducers.record.entry import Entry


def numbered_mails(members: list[Member], entries: dict[str, Entry]) -> list[tuple[Member, str, bytes]]:
    """(member, file name, mail) of each patch and of its tests, numbered in the order of the series."""
    from reproducers.desk.patches import header

    rows = [(member, tests) for member in members for tests in ([False, True] if _tested(member) else [False])]
    mails: list[tuple[Member, str, bytes]] = []
    total = len(rows)
    for number, (member, tests) in enumerate(rows, 1):
        pack = member.pack
        if tests:
            mails.append((member, *header.tests_mail(pack, number, total)))
        else:
            entry = entries[pack.id]
            mails.append((member, *header.mail(pack, member.name, entry, ROOT / "receipts", number, total)))
    return mails


def _tested(member: Member) -> bool:
    """Whether its tests go into the series; those beside a source folder have another depth than its wheel's files."""
    return member.pack.tests_patch.is_file() and member.pack.upstream.source_root == "."


def tried_on_tree(members: list[Member], mails: list[tuple[Member, str, bytes]]) -> dict[str, str]:
    """How each mail applies to the pinned tree; CannotTestHere if the store lacks the tree."""
    from reproducers.desk.patches.trees import tree_of
    from reproducers.desk.patches.tried import verify
    from reproducers.upstream.store import Store

    first = members[0]
    tree = tree_of(first.pack, first.pin, Store(offline=True).root)
    if tree is None:
        run = f"python -m reproducers.run {first.pack.id} --at {first.name}"
        raise CannotTestHere(f"{first.pin.origin} is not in the store, so the series cannot be tried", run)
    return verify(tree, mails)


def listing(members: list[Member], tried: dict[str, str]) -> str:
    """The ``series`` file: how to apply it, then the patches in order."""
    from reproducers.desk.patches.fields import target

    base = target(members[0].pack, members[0].pin.model_copy(update={"stacked_on": []}))
    option, root = " -3" if "three-way" in tried.values() else "", members[0].pack.upstream.source_root
    how = f"git am{option} *.patch"
    if root != ".":  # the patches are in the layout of the repository
        depth = 1 + len(Path(root).parts)
        how += f" in a checkout; git am{option} -p{depth} *.patch on an unpacked wheel, which has no {root}/"
    return "\n".join([f"# {base}: {how}", *tried, ""])


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Make ``folder`` hold these files only; PatchlaneError if it holds files of another kind or cannot be written."""
    strangers = [p.name for p in folder.glob("*") if p.name != "series" and p.suffix != ".patch"]
    if strangers:
        raise PatchlaneError(f"{folder} holds {strangers[0]}, which is no part of a series", "--out another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".tmp-"))
        try:
            (new := scratch / "new").mkdir()
            for name, data in files.items():
                (new / name).write_bytes(data)
            swap(new, folder, scratch / "old")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise PatchlaneError(f"--out {folder}: {error.strerror}", "name a folder that you may write") from error


def planned(names: list[str], pin: str) -> tuple[Choice, dict[str, Entry]]:
    """The series of the named packs, or of all packs, at the pins of that name, with the manifest's entries."""
    from reproducers.desk.patches.order import choose
    from reproducers.evidence.manifest import build
    from reproducers.record.schema import load_packs, select

    packs = load_packs(ROOT / "packs")
    entries = build(packs, ROOT / "receipts")
    named = list({pack.number: pack for pack in select(names, packs)}.values())
    return choose(packs, named, pin, entries, ROOT / "receipts"), entries
