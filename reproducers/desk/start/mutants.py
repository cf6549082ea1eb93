"""A pack's mutants: wrong fixes that a check must catch. Each is ``mutants/NAME.patch``, a diff of the patched tree.

Two lines stand above the diff: ``Caught-By``, the name of that check or a glob over names, and ``Why``, what is wrong
with the fix. A mutant proves the reproducer, so nobody upstream gets it and no receipt names it.

``alternatives/NAME.patch`` is another right fix, which the checks must accept: a diff of the pristine tree below the
line ``Why``, how it does it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import temporary
from reproducers.desk.patches import short_header
from reproducers.record.receipt import Check
from reproducers.record.schema import Pack
from reproducers.trial.arms import ArmResult
from reproducers.trial.experiment import Run
from reproducers.upstream import patching
from reproducers.upstream.git import git
from reproducers.upstream.store import Tree

FIELDS = ("Caught-By", "Why")
WIDEST = 30  # lines of context
WRONG = ("bug", "different", "failed")
PAGE = "docs/writing-a-pack.md, The mutants"
REBASE = "rebase it: apply fix.patch to the pinned tree, commit, make the mistake, and git diff"


@dataclass(frozen=True)
class Mutant:
    """A wrong fix, the check that must catch it (a name or a glob), what is wrong with it, and its diff."""

    path: Path
    caught_by: str
    why: str
    diff: str

    def catching(self, checks: Iterable[str]) -> list[str]:
        """Those of ``checks`` that the mutant names."""
        return [name for name in checks if name == self.caught_by or fnmatchcase(name, self.caught_by)]


def owed(pack: Pack) -> bool:
    """Whether the pack needs a mutant: it offers a fix and has a CPU lane."""
    return pack.patch.is_file() and "cpu" in pack.lanes


def paths(pack: Pack) -> list[Path]:
    """The files of the pack's mutants, by name."""
    return sorted(pack.folder.glob("mutants/*.patch"))


def read(path: Path) -> Mutant:
    """One mutant; PatchlaneError if a field is missing, a line is no field, or no diff follows."""
    header = short_header.read(path)
    caught_by, why = (header.field(name) for name in FIELDS)
    return Mutant(path, caught_by, why, header.diff.decode(errors="replace"))


def alternatives(pack: Pack) -> list[Path]:
    """The files of the pack's alternatives, by name."""
    return sorted(pack.folder.glob("alternatives/*.patch"))


def alternative(pack: Pack, tree: Tree, path: Path) -> str:
    """An alternative's diff; PatchlaneError if its header lacks ``Why`` or it does not apply to ``tree`` as it is."""
    header = short_header.read(path)
    header.field("Why")
    fit = patching.classify(tree.path, path, strip=patching.strip_for(tree.path, pack.upstream.source_root))
    if fit.kind is not patching.ApplyClass.CLEAN:
        raise PatchlaneError(
            f"{pack.folder.name}/alternatives/{path.name}: {fit.kind.value}: {fit.message}",
            "rebase it: apply it to the pinned tree and git diff",
        )
    return header.diff.decode(errors="replace")


def whole(pack: Pack, tree: Tree, mutant: Mutant) -> str:
    """fix.patch and the mutant on top of it, as one patch of the pristine ``tree``.

    Raises PatchlaneError if either applies with fuzz or offset, or not at all.
    """
    with patched_files(pack, tree, mutant.path) as root:
        _apply(pack, root, mutant.path)
        return difference(root, hunks(pack))


@contextlib.contextmanager
def patched_files(pack: Pack, tree: Tree, *others: Path) -> Iterator[Path]:
    """A folder with the patched files under the names that fix.patch has, for ``difference``; gone at the end.

    With the files that ``others``, patches too, name. PatchlaneError where fix.patch does not apply as it stands.
    """
    strip = patching.strip_for(tree.path, pack.upstream.source_root)
    sets = [patching.files(path) for path in (pack.patch, *others)]
    names = {name for files in sets for file in files for name in (file.source_file, file.target_file) if name}
    with temporary() as scratch:
        root = Path(scratch).resolve()
        for name in (Path(name) for name in names):
            source, copy = tree.path.joinpath(*name.parts[strip:]), root.joinpath(*name.parts[1:])
            if source.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        for args in (("init", "-q"), ("add", "-A")):
            git(*args, cwd=root)
        _apply(pack, root, pack.patch)
        yield root


def _apply(pack: Pack, root: Path, path: Path) -> None:
    fit = patching.classify(root, path, strip=1)
    if fit.kind is not patching.ApplyClass.CLEAN:
        where = path.relative_to(pack.folder)
        raise PatchlaneError(f"{pack.folder.name}/{where}: {fit.kind.value}: {fit.message}", REBASE)
    patching.apply(root, path, strip=1)


def difference(root: Path, hunks: int) -> str:
    """What the folder of ``patched_files`` holds by now, as one patch of the pristine tree.

    ``hunks``: of fix.patch. No more are made, with as much context as that takes: of a hunk that became two one may
    have no line that runs.
    """
    git("add", "-AN", cwd=root)
    text = ""
    for context in range(3, WIDEST + 1):
        text = git("diff", f"-U{context}", cwd=root).stdout
        if sum(line.startswith("@@ ") for line in text.splitlines()) <= hunks:
            break
    return text


def hunks(pack: Pack) -> int:
    """How many fix.patch has."""
    return sum(len(file) for file in patching.files(pack.patch))


def failing(pristine: ArmResult) -> Callable[[Check], bool]:
    """Whether a check of a patched arm, beside this pristine one, shows by itself that the arm is wrong."""
    bits = {check.name: check.measured for check in pristine.checks if check.role == "digest"}

    def wrong(check: Check) -> bool:
        changed = check.role == "digest" and check.name in bits and check.measured != bits[check.name]
        return check.state in WRONG or changed

    return wrong


def caught(run: Run) -> list[str]:
    """The names of the checks by which a run shows that its patched arm is wrong; none if an arm did not run.

    They are checks that fail there, guards that it did not reach, tensors that changed in any bit, and facts of its
    census; of an arm that was ended at a check this one alone.
    """
    if not (run.pristine and run.patched):
        return []
    if ended_at := run.patched[-1].ended_at:
        return [ended_at.name]
    before, after = (arms[-1].checks for arms in (run.pristine, run.patched))
    now, wrong = {check.name for check in after}, failing(run.pristine[-1])
    gone = [check.name for check in before if check.role == "guard" and check.name not in now]
    strayed = [f"census: {one.fact}" for one in run.census.strayed] if run.census else []
    return [check.name for check in after if wrong(check)] + gone + strayed
