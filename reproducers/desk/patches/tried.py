"""Try a series as its reader will: by ``git am``, patch by patch, in a scratch repository of the touched files.

A patch that earlier ones moved may apply at an offset or by ``git am -3``, if the result equals the three-way merge by
``git merge-file``, with which the overlay joins packs for training. Fuzz never occurs, because git applies whole
contexts only.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import temporary
from reproducers.desk.patches.order import Member
from reproducers.desk.patches.trees import touched
from reproducers.upstream import git as gittree
from reproducers.upstream import merging, patching
from reproducers.upstream.patching import ApplyClass

CLEAN, MOVED, THREE_WAY = "clean", "moved", "three-way"
Images = dict[str, bytes | None]  # a file's bytes, None if there is no such file


def git(repository: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run git as the author patchlane, with the repository's configuration only."""
    author = ("-c", "user.name=patchlane", "-c", "user.email=patchlane@patchlane.invalid")
    return gittree.git(*author, *args, cwd=repository)


class Trial:
    """The scratch repository of one series; each ``add`` is one ``git am``."""

    def __init__(self, scratch: Path, tree: Path, members: list[Member]) -> None:
        self.scratch, self.tree, self.members = scratch, tree, members
        self.strip = patching.strip_for(tree, members[0].pack.upstream.source_root)
        self.done: list[Member] = []
        touched_files = sorted({name for member in members for name in self.files(member)})
        self.repository = self._copied("repository", touched_files)
        for command in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-q", "--allow-empty", "-m", "pinned"]):
            git(self.repository, *command)

    def files(self, member: Member) -> list[str]:
        """Paths inside the tree that the member's patch touches."""
        return touched(patching.files(member.patch), self.strip)

    def add(self, member: Member, mail: Path) -> str:
        """``git am`` the mail and return how it applied; PatchlaneError names the pack that it conflicts with.

        A member's second mail adds its tests, which no tree has.
        """
        if member in self.done:
            return self._tests(member, mail)
        how, flags = CLEAN, ["am", "--quiet", "--keep-cr", f"-p{self.strip}"]
        wanted: Images = {}
        if patching.classify(self.repository, member.patch, self.strip).kind is not ApplyClass.CLEAN:
            how, wanted = MOVED, self._merged(member)
        done = git(self.repository, *flags, str(mail.resolve()))
        if done.returncode and how is MOVED:
            git(self.repository, "am", "--abort")
            how, done = THREE_WAY, git(self.repository, *flags, "-3", str(mail.resolve()))
        if done.returncode:
            raise self._conflict(member, f"git am: {' '.join(done.stderr.split())[:200]}")
        if wanted and self._images(self.repository, list(wanted)) != wanted:
            raise self._conflict(member, "git am puts it elsewhere than the overlay's merge does")
        self.done.append(member)
        return how

    def _tests(self, member: Member, mail: Path) -> str:
        done = git(self.repository, "am", "--quiet", "--keep-cr", "-p1", str(mail.resolve()))
        if done.returncode:
            raise self._conflict(member, f"git am of its tests: {' '.join(done.stderr.split())[:200]}")
        return CLEAN

    def _copied(self, name: str, files: list[str]) -> Path:
        """A folder with the pinned version of ``files``."""
        folder = self.scratch / name
        folder.mkdir()
        for file in files:
            if (self.tree / file).is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.tree / file, folder / file)
        return folder

    def _alone(self, member: Member) -> tuple[Images, Images]:
        """The member's files before and after its patch alone, on the packs that its pin is stacked on."""
        below = [other for other in self.done if other.pack.number in member.pin.stacked_on]
        names = sorted({name for other in (*below, member) for name in self.files(other)})
        with tempfile.TemporaryDirectory(dir=self.scratch) as place:
            folder = self._copied(f"{Path(place).name}/alone", names)
            for other in below:
                patching.apply(folder, other.patch, self.strip)
            before = self._images(folder, self.files(member))
            patching.apply(folder, member.patch, self.strip)
            return before, self._images(folder, self.files(member))

    def _images(self, folder: Path, names: list[str]) -> Images:
        return {name: (folder / name).read_bytes() if (folder / name).is_file() else None for name in names}

    def _merged(self, member: Member) -> Images:
        """Each file of the member with its patch merged into the series; PatchlaneError if a merge overlaps."""
        before, after = self._alone(member)
        merged: Images = {}
        for name, current in self._images(self.repository, list(after)).items():
            merged[name] = _merge(current, before[name], after[name])
            if merged[name] is None:
                raise self._conflict(member, f"the merge of {name} overlaps")
        return merged

    def _conflict(self, member: Member, why: str) -> PatchlaneError:
        """The error that names both packs and the command that leaves the later one out."""
        files = set(self.files(member))
        sharing = [other for other in self.done if files & set(self.files(other))]
        rivals = [other for other in sharing if self._overlaps(other, member)] or sharing
        who = " and ".join(rival.pack.id for rival in [*rivals[:1], member])
        rest = " ".join(other.pack.id for other in self.members if other is not member)
        what = f"{who} do not go into one series: {why}" if rivals else f"{who} does not apply to its pin: {why}"
        option = "" if member.name == "live" else f" --pin {member.name}"
        return PatchlaneError(what, f"leave {member.pack.id} out: python -m reproducers.series {rest}{option}")

    def _overlaps(self, earlier: Member, later: Member) -> bool:
        (base, first), (_, second) = self._alone(earlier), self._alone(later)
        return any(_merge(first[name], base[name], second[name]) is None for name in set(first) & set(second))


def _merge(ours: bytes | None, base: bytes | None, theirs: bytes | None) -> bytes | None:
    """``merging.merge_file``, an absent file being an empty one."""
    return merging.merge_file(ours or b"", base or b"", theirs or b"")


def verify(tree: Path, mails: list[tuple[Member, str, bytes]]) -> dict[str, str]:
    """``git am`` of all mails (member, file name, bytes) in order on the pinned ``tree``: {file name: how it applied}.

    Raises PatchlaneError if a mail does not apply, or not as the overlay merges it.
    """
    with temporary() as place:
        trial = Trial(Path(place), tree, [member for member, _, _ in mails])
        applied = {}
        for member, name, data in mails:
            (Path(place) / name).write_bytes(data)
            applied[name] = trial.add(member, Path(place) / name)
        return applied
