"""A series tried as its reader will: ``git am``, patch by patch, in a scratch repository of the files that it touches.

A patch that earlier ones moved may apply at an offset or by ``git am -3``, if that gives what ``git merge-file`` makes
of the two versions through the pinned file, which is how the overlay joins packs for training. Fuzz never occurs:
git applies whole contexts only.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from reproducers.base.errors import PatchlaneError
from reproducers.desk.patches.order import Member
from reproducers.desk.patches.trees import touched
from reproducers.upstream import git as gittree
from reproducers.upstream import merging, patching
from reproducers.upstream.patching import ApplyClass

CLEAN, MOVED, THREE_WAY = "clean", "moved", "three-way"
Images = dict[str, bytes | None]  # a file's bytes, None where there is no such file


def git(repository: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run git by no configuration but the repository's own, as an author of no name."""
    author = ("-c", "user.name=patchlane", "-c", "user.email=patchlane@patchlane.invalid")
    return gittree.git(*author, *args, cwd=repository)


class Trial:
    """The scratch repository of one series; each ``add`` is one ``git am``."""

    def __init__(self, scratch: Path, tree: Path, members: list[Member]) -> None:
        self.scratch, self.tree, self.members = scratch, tree, members
        self.strip = patching.strip_for(tree, members[0].pack.upstream.source_root)
        self.done: list[Member] = []
        self.repository = self._copied("repository", sorted({name for one in members for name in self.files(one)}))
        for command in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-q", "--allow-empty", "-m", "pinned"]):
            git(self.repository, *command)

    def files(self, member: Member) -> list[str]:
        """Paths inside the tree that the member's patch touches."""
        return touched(patching.files(member.patch), self.strip)

    def add(self, member: Member, mail: Path) -> str:
        """``git am`` the mail; how it applied. PatchlaneError naming the pack that it conflicts with."""
        how, flags = CLEAN, ["am", "--quiet", "--keep-cr", f"-p{self.strip}"]
        wanted: Images = {}
        if patching.classify(self.repository, member.patch, self.strip).kind is not ApplyClass.CLEAN:
            how, wanted = MOVED, self._merged(member)
        said = git(self.repository, *flags, str(mail.resolve()))
        if said.returncode and how is MOVED:
            git(self.repository, "am", "--abort")
            how, said = THREE_WAY, git(self.repository, *flags, "-3", str(mail.resolve()))
        if said.returncode:
            raise self._conflict(member, f"git am: {' '.join(said.stderr.split())[:200]}")
        if wanted and self._images(self.repository, list(wanted)) != wanted:
            raise self._conflict(member, "git am puts it elsewhere than the overlay's merge does")
        self.done.append(member)
        return how

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
        below = [one for one in self.done if one.pack.number in member.pin.stacked_on]
        names = sorted({name for one in (*below, member) for name in self.files(one)})
        with tempfile.TemporaryDirectory(dir=self.scratch) as place:
            folder = self._copied(f"{Path(place).name}/alone", names)
            for one in below:
                patching.apply(folder, one.patch, self.strip)
            before = self._images(folder, self.files(member))
            patching.apply(folder, member.patch, self.strip)
            return before, self._images(folder, self.files(member))

    def _images(self, folder: Path, names: list[str]) -> Images:
        return {name: (folder / name).read_bytes() if (folder / name).is_file() else None for name in names}

    def _merged(self, member: Member) -> Images:
        """What each file should be with the member's patch in; PatchlaneError where a merge overlaps."""
        before, after = self._alone(member)
        found: Images = {}
        for name, ours in self._images(self.repository, list(after)).items():
            found[name] = _merge(ours, before[name], after[name])
            if found[name] is None:
                raise self._conflict(member, f"the merge of {name} overlaps")
        return found

    def _conflict(self, member: Member, why: str) -> PatchlaneError:
        """The error that names the two packs and how to go on without the later one."""
        mine = set(self.files(member))
        sharing = [one for one in self.done if mine & set(self.files(one))]
        rivals = [one for one in sharing if self._overlaps(one, member)] or sharing
        who = " and ".join(one.pack.id for one in [*rivals[:1], member])
        rest = " ".join(one.pack.id for one in self.members if one is not member)
        what = f"{who} do not go into one series: {why}" if rivals else f"{who} does not apply to its pin: {why}"
        option = "" if member.name == "live" else f" --pin {member.name}"
        return PatchlaneError(what, f"leave {member.pack.id} out: python -m reproducers.series {rest}{option}")

    def _overlaps(self, one: Member, other: Member) -> bool:
        (base, ours), (_, theirs) = self._alone(one), self._alone(other)
        shared = set(ours) & set(theirs)
        return any(_merge(ours[name], base[name], theirs[name]) is None for name in shared)


def _merge(ours: bytes | None, base: bytes | None, theirs: bytes | None) -> bytes | None:
    """``merging.merge_file``, an absent file being an empty one."""
    return merging.merge_file(ours or b"", base or b"", theirs or b"")


def verify(tree: Path, mails: list[tuple[Member, str, bytes]]) -> dict[str, str]:
    """``git am`` of all mails (member, file name, bytes) in order on the pinned ``tree``: {file name: how it applied}.

    PatchlaneError where one does not apply, or not as the overlay merges it.
    """
    with tempfile.TemporaryDirectory(prefix="patchlane-series-") as place:
        trial = Trial(Path(place), tree, [member for member, _, _ in mails])
        found = {}
        for member, name, data in mails:
            (Path(place) / name).write_bytes(data)
            found[name] = trial.add(member, Path(place) / name)
        return found
