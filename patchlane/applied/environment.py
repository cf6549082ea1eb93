"""All patches that fit put into what is installed, and taken out again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchlane.applied import recorded, transaction
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import bytes_of, temporary
from patchlane.judged.advice import Patches
from patchlane.judged.answers import Answer
from patchlane.known.index import Known
from patchlane.patches.state import FOLDER, kept, sha256
from patchlane.present.environment import Environment


@dataclass(frozen=True)
class Applied:
    """The folder of packages that was changed, the packs whose patches went in, and why the others' did not."""

    root: Path | None
    packs: list[str]
    left: dict[str, str]


def apply(answers: list[Answer], known: Known, seen: Environment, dry_run: bool) -> Applied:
    """Put the patch of each bug in that has one, in the answers' order, each on top of those before.

    Needs the lock of the folder, and answers that were given under it. Nothing is changed where anything is refused: a
    full disk, a link, a file that was changed since an earlier call, patches for two folders.
    """
    taken, left = list[Answer](), dict[str, str]()
    with temporary() as scratch:
        patches = Patches(known, scratch)
        for answer in [answer for answer in answers if answer.state == "buggy"]:
            command = patches.command(answer)
            if answer.pack in patches.taken and _record(answer, seen):
                taken.append(answer)
            else:
                what = "its code is not what pip recorded: " if answer.pack in patches.taken else ""
                left[answer.pack] = what + (command or "no patch is for this code")
        folders = sorted({answer.root for answer in taken})
        if len(folders) > 1:
            raise PatchlaneError(f"patches for {' and '.join(folders)}", "name the packs of one of them at a time")
        if not taken:
            return Applied(None, [], left)
        root = Path(folders[0])
        contents = _contents(root, patches.copies[root], taken, known, seen)
    if not dry_run:
        state = transaction.unchanged(root)
        transaction.change(root, contents, (*state.packs, *(answer.pack for answer in taken)))
    return Applied(root, [answer.pack for answer in taken], left)


def _record(answer: Answer, seen: Environment) -> Path | None:
    """The RECORD that lists the code of an answer; None where what is imported is not what pip installed."""
    installed = seen.distribution(answer.distribution)
    if installed is None or installed.folder is None or not answer.root:
        return None
    root = Path(answer.root).resolve()
    if installed.folder.resolve() != root or not root.is_dir():
        return None
    return recorded.record_of(root, answer.distribution, installed.version)


def _contents(
    root: Path, copy: Path, taken: list[Answer], known: Known, seen: Environment
) -> dict[str, bytes | Path | None]:
    """{path: content} of all that the patches leave changed, with each RECORD that speaks of it; None for bytecode."""
    contents = dict[str, bytes | Path | None]()
    for record in dict.fromkeys(filter(None, (_record(answer, seen) for answer in taken))):
        mine = [answer for answer in taken if _record(answer, seen) == record]
        names = sorted({name for a in mine for name in known.packs[a.pack].patches[a.patch].paths})
        found = {name: bytes_of(copy / name) if (copy / name).is_file() else None for name in names}
        if link := next((root / name for name in names if (root / name).is_symlink()), None):
            raise PatchlaneError(f"{link}: a link, which is not replaced", "patch the file that it leads to")
        text = recorded.updated(bytes_of(record).decode("utf-8", "surrogateescape"), found)
        contents |= {**found, str(record.relative_to(root)): text.encode("utf-8", "surrogateescape")}
        contents |= dict.fromkeys(name for path in found for name in bytecode(root, path))
    return contents


def bytecode(root: Path, path: str) -> list[str]:
    """The files of compiled code of a source file, which may be of what it was before."""
    place = root / path
    found = place.parent.glob(f"__pycache__/{place.stem}.*.pyc") if place.suffix == ".py" else ()
    return sorted(str(each.relative_to(root)) for each in found)


def revert(root: Path) -> tuple[str, ...]:
    """Give all files of a folder of packages their content from before; the packs whose patches were in.

    Needs the lock. PatchlaneError where a file was changed since: nothing is changed then.
    """
    state = transaction.unchanged(root)
    contents = dict[str, bytes | Path | None]()
    for name in state.changes:
        contents |= dict.fromkeys(bytecode(root, name))
    for name, one in state.changes.items():
        if one.before and sha256(kept(root, name, one.before)) != one.before:
            raise PatchlaneError(f"{root / FOLDER}: damaged, it does not hold {name}", transaction.anew(root))
        contents[name] = kept(root, name, one.before) if one.before else None
    if contents:
        transaction.change(root, contents, ())
    return state.packs


def roots(known: Known, seen: Environment) -> list[Path]:
    """The folders of packages in which the packs' distributions are installed."""
    found = (seen.distribution(pack.distribution) for pack in known.packs.values())
    return sorted({each.folder.resolve() for each in found if each and each.folder})
