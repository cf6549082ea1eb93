"""Each pack's answer for an environment: by the digests of its functions, else by the release number alone."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version
from pydantic import Field

from reproducers.base.errors import CannotTestHere
from reproducers.base.verdicts import Exit
from reproducers.base.wording import count, short
from reproducers.record.fingerprint import Fingerprint, Fingerprints, KnownTree
from reproducers.record.schema import Model, Pack
from reproducers.studies.installed.environment import Distribution, Environment
from reproducers.studies.installed.functions import Function, functions
from reproducers.upstream import patching
from reproducers.upstream.patching import ApplyClass

State = Literal["buggy", "patched", "fixed", "unknown", "absent"]
STATES = {
    "buggy": "the bug is there, and no patch",
    "patched": "the pack's patch is in the code",
    "fixed": "the code is that of a release or commit without the bug",
    "unknown": "nobody has measured this code; the line says what decides",
    "absent": "the code in question is not installed",
}


class Place(Model):
    """A function in question in the environment, or the line that asks for the distribution."""

    file: str
    line: int
    function: str = ""


class Answer(Model):
    """One pack's answer. ``by``: what it rests on; ``cost``: what the bug costs a training run.

    ``measurable``: a run of the reproducer on the installed code would decide.
    """

    pack: str
    state: State
    distribution: str
    version: str | None = None
    by: Literal["code", "release", "run", ""] = ""
    cost: str
    reason: str
    remedy: str = ""
    places: list[Place] = Field(default=[])
    measurable: bool = False


def audit(packs: list[Pack], known: Fingerprints, environment: Environment) -> list[Answer]:
    """The answers of all packs that have fingerprints, by number; no file of the environment is imported or changed."""
    parsed = dict[Path, dict[str, Function]]()
    return [_Case(pack, known.packs[pack.id], environment, parsed).answer() for pack in packs if pack.id in known.packs]


def exit_code(answers: list[Answer]) -> Exit:
    """1 where a bug is unpatched, 0 where none is, 77 where nothing could be decided."""
    states = {answer.state for answer in answers}
    if "buggy" in states:
        return Exit.CONTRADICTED
    return Exit.OK if states & {"patched", "fixed"} else Exit.CANNOT_TEST


class _Case:
    """One pack in one environment."""

    def __init__(
        self, pack: Pack, known: Fingerprint, environment: Environment, parsed: dict[Path, dict[str, Function]]
    ) -> None:
        self.pack, self.known, self.environment, self.parsed = pack, known, environment, parsed
        self.installed: Distribution | None = environment.distribution(known.distribution)
        self.places = list[Place]()

    def answer(self) -> Answer:
        if self.environment.requirements:
            return self._by_requirement()
        folders = self.environment.packages.get(self.known.package, [])
        if not folders:
            return self._said("absent", "", f"{self.known.distribution} is not installed")
        return self._by_code() if self.known.functions else self._by_release(folders)

    def _by_requirement(self) -> Answer:
        asked = self.installed
        if asked is None:
            return self._said("absent", "", f"{self.known.distribution} is not required there")
        self.places = [Place(file=str(asked.file), line=asked.line)]
        if asked.version is None:
            remedy = f"{self.known.distribution}==VERSION in that line, or --python PATH for what is installed"
            return self._said("unknown", "", "no single exact version is required", remedy)
        return self._decided(self._of_release(asked.version), "release")

    def _by_release(self, folders: list[Path]) -> Answer:
        """No patch says which functions matter: the release decides, where it is the code that would be imported."""
        if self.installed is None or self.installed.version is None or self.installed.folder is None:
            return self._said("unknown", "", f"{folders[0]} belongs to no installed distribution", measurable=True)
        if not any(folder.is_relative_to(self.installed.folder) for folder in folders):
            said = f"{folders[0]} would be imported, which is not the installed {self.installed.version}"
            return self._said("unknown", "", said, measurable=True)
        return self._decided(self._of_release(self.installed.version), "release")

    def _by_code(self) -> Answer:
        names = self.known.functions
        files = {name.split(":")[0]: self.environment.file(name.split(":")[0]) for name in names}
        needed = {
            name.split(":")[0]
            for tree in self.known.trees
            if tree.state == "buggy"
            for name, digest in tree.code.items()
            if digest
        }
        if not any(files[path] for path in needed):
            said = f"no {' or '.join(sorted(needed))} is there: older code, or moved"
            return self._said("absent", "", said)
        try:
            digests = {name: self._function(files[name.split(":")[0]], name.split(":")[1]) for name in names}
        except (SyntaxError, ValueError, OSError) as error:
            return self._said("unknown", "", f"a file of it cannot be read: {error}", measurable=True)
        matching = [tree for tree in self.known.trees if tree.code == digests]
        if matching:
            return self._decided(matching, "code")
        strange = [
            name for name, digest in digests.items() if digest not in {tree.code.get(name) for tree in self.known.trees}
        ]
        what = f"of no measured tree: {', '.join(name.split(':')[1] for name in strange)}"
        said = what if strange else "its functions are from several measured trees"
        return self._said("unknown", "", said, measurable=True)

    def _function(self, file: Path | None, name: str) -> str | None:
        """The digest of the function in a file of the environment, and its place for the report."""
        if file is None:
            return None
        if file not in self.parsed:
            self.parsed[file] = functions(file.read_bytes())
        function = self.parsed[file].get(name)
        if function:
            self.places.append(Place(file=str(file), line=function.line, function=name))
        return function.digest if function else None

    def _of_release(self, version: str) -> list[KnownTree]:
        return [
            tree
            for tree in self.known.trees
            if tree.state != "patched" and tree.release and _same(tree.release, version)
        ]

    def _decided(self, matching: list[KnownTree], by: Literal["code", "release"]) -> Answer:
        """The answer where code or release is that of these trees, which may speak of other packages beside them."""
        mine = self._version
        met = [tree for tree in matching if self._beside(tree)]
        met.sort(key=lambda tree: not _same(tree.release or tree.name, mine))
        states = {tree.state for tree in met}
        if len(states) == 1:
            return self._said(states.pop(), by, self._reason(met, by), self._mend(met))
        if not matching:
            said = f"no receipt speaks of {self.known.distribution} {self._version}"
            return self._said("unknown", "", said, f"python -m reproducers.run {self.pack.id} --at {self._version}")
        wanted = sorted({f"{name} {release}" for tree in matching for name, release in tree.beside.items()})
        if not states and wanted:
            said = f"the same code was measured beside {', '.join(wanted)} only"
            return self._said("unknown", "", said, self._pin_remedy(matching))
        return self._said("unknown", "", "the same code was measured with the bug and without", measurable=True)

    def _beside(self, tree: KnownTree) -> bool:
        """Whether the packages on which the answer depends are installed in the releases that were measured."""
        seen = [
            (self.environment.distribution(name), release)
            for name, release in tree.beside.items()
            if self.environment.distribution(name)
        ]
        same = all(_same(each.version or "", release) for each, release in seen if each)
        return not tree.beside or (bool(seen) and same)

    def _reason(self, trees: list[KnownTree], by: str) -> str:
        tree = trees[0]
        label = f"{self.known.distribution} {short(tree.name)}"
        if by == "release":
            shows = "the bug" if tree.state == "buggy" else "no bug"
            return f"receipts show {shows} in {label}; judged by the release number alone"
        subject = "its function is that" if len(self.known.functions) == 1 else "its functions are those"
        number = count(len(self.known.functions), "function")
        if tree.state == "patched":
            return f"{subject} of {label} with {tree.patch} ({number})"
        return f"{subject} of {label}, where receipts show {'the' if tree.state == 'buggy' else 'no'} bug ({number})"

    def _mend(self, trees: list[KnownTree]) -> str:
        """How to be rid of the bug: a release without it, or the patch."""
        if trees[0].state != "buggy":
            return ""
        ways = []
        if release := self._next_release():
            ways.append(f"pip install {self.known.distribution}=={release}")
        if name := next((tree.patch for tree in trees if tree.patch), None):
            ways.append(self._patching(self.pack.folder / name))
        return " or ".join(ways) or f"none is known; see {self.pack.folder / 'notes.md'}"

    def _patching(self, patch: Path) -> str:
        """The command that patches what is installed, where the patch applies as it stands."""
        root = self._import_root()
        if root is None:
            return f"apply {patch} to what is installed"
        depth = 1 + (self.pack.upstream.source_root != ".") * len(Path(self.pack.upstream.source_root).parts)
        try:
            clean = patching.classify(root, patch, depth).kind is ApplyClass.CLEAN
        except CannotTestHere:  # without git, patch will say it
            clean = True
        command = f"patch -F0 -p{depth} -d {shlex.quote(str(root))} -i {shlex.quote(str(patch))}"
        return command if clean else f"rebase {patch} on this code, for it does not apply as it stands"

    def _next_release(self) -> str | None:
        """The nearest release that receipts show healthy: a later one where there is one."""
        healthy = sorted(self.known.releases("fixed"), key=Version)
        try:
            mine = Version(self._version)
        except InvalidVersion:
            return None
        return next((release for release in healthy if Version(release) > mine), healthy[-1] if healthy else None)

    def _import_root(self) -> Path | None:
        """The folder under which the first function's file lies, as a patch names it."""
        if not self.places or self.environment.requirements:
            return None
        file = Path(self.places[0].file)
        path = next(name.split(":")[0] for name in self.known.functions if self.environment.file(name.split(":")[0]))
        return file.parents[len(Path(path).parts) - 1]

    def _pin_remedy(self, trees: list[KnownTree]) -> str:
        names = {name for tree in trees for name in tree.beside}
        have = [f"{name} {each.version}" for name in sorted(names) if (each := self.environment.distribution(name))]
        if not have:
            return f"install {' or '.join(sorted(names))}, or ignore it: --ignore {self.pack.id}"
        return f"give {self.pack.folder / 'pack.yaml'} a pin that needs {', '.join(have)}, and run the pack --at it"

    @property
    def _version(self) -> str:
        return (self.installed.version if self.installed else None) or "?"

    def _said(
        self,
        state: State,
        by: Literal["code", "release", ""],
        reason: str,
        remedy: str = "",
        measurable: bool = False,
    ) -> Answer:
        if measurable and not remedy:
            remedy = f"python -m reproducers.audit {self.pack.id}{self.environment.option} --run"
        return Answer(
            pack=self.pack.id,
            state=state,
            distribution=self.known.distribution,
            version=self.installed.version if self.installed else None,
            by=by,
            cost=self.pack.title,
            reason=reason,
            remedy=remedy,
            places=self.places,
            measurable=measurable,
        )


def _same(release: str, version: str) -> bool:
    try:
        return Version(release) == Version(version)
    except InvalidVersion:
        return release == version
