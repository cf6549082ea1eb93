"""Each pack's answer for an environment: by the digests of its functions, else by the release number alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from patchlane.base import place
from patchlane.base.errors import StoreError
from patchlane.base.files import bytes_of
from patchlane.base.wording import count, short
from patchlane.judged.advice import same
from patchlane.judged.answers import Answer, Place, State
from patchlane.known.functions import Function, functions
from patchlane.known.index import Known, KnownTree
from patchlane.listed import origins
from patchlane.listed.choices import Choice, choices, refusing
from patchlane.listed.reading import Required
from patchlane.patches.state import applied
from patchlane.present.environment import Distribution, Environment

UNREAD_REMEDY = "--python PATH for what is installed, or write that line in a form that is read"
LARGEST = 8 * 2**20  # bytes of a Python file that is read; the largest of the upstreams has a third of one million


def audit(known: Known, environment: Environment) -> list[Answer]:
    """The answers of all packs of the index, by number; no file of the environment is imported or changed."""
    parsed = dict[Path, dict[str, Function]]()
    return [_Case(pack, known, environment, parsed).answer() for pack in known.packs]


class _Case:
    """One pack in one environment."""

    def __init__(
        self, pack: str, known: Known, environment: Environment, parsed: dict[Path, dict[str, Function]]
    ) -> None:
        self.id, self.known, self.environment, self.parsed = pack, known.packs[pack], environment, parsed
        self.commits = known.index.commits.get(self.known.distribution, {})
        self.installed: Distribution | None = environment.distribution(self.known.distribution)
        self.version = self.installed.version if self.installed else None
        self.places = list[Place]()
        self.root = ""

    def answer(self) -> Answer:
        if self.environment.reading:
            return self._by_requirement()
        folders = self.environment.packages.get(self.known.package, [])
        if not folders:
            return self._absent(f"{self.known.distribution} is not installed")
        return self._by_code() if self.known.functions else self._by_release(folders)

    def _absent(self, why: str) -> Answer:
        """Absent, where all was understood; what was not may bring the code."""
        unread = self.environment.unread
        if not unread:
            return self._said("absent", "", why)
        which = "this line, which is" if len(unread) == 1 else f"one of {len(unread)} lines, which are"
        said = f"{why} by what could be read; {which} not understood, may bring it"
        return self._said("unknown", "", said, UNREAD_REMEDY)

    def _by_requirement(self) -> Answer:
        """By the versions that lines ask for: of all environments in which their markers hold, or it is unknown."""
        lines = self.environment.required(self.known.distribution)
        if not lines:
            turn = "" if self.environment.whole else "; what its lines require in turn is not followed"
            return self._absent(f"{self.known.distribution} is not required there{turn}")
        found = choices(lines)
        self.places = [Place(file=each.file, line=each.line) for each in lines]
        if not found and all(each.constraint for each in lines):
            said = f"{lines[0].place} limits it to {lines[0].spec or lines[0].version}, and no line requires it"
            return self._said("unknown", "", said, "--python PATH for what is installed")
        if not found:
            return self._absent(f"{lines[0].place} requires it where {lines[0].marker}, which holds nowhere")
        answers = [(choice, self._of_choice(choice)) for choice in found]
        if len({answer.state for _, answer in answers}) == 1:
            return answers[0][1]
        said = "; ".join(f"{answer.state} where {choice.where or 'no marker holds'}" for choice, answer in answers)
        return self._said("unknown", "", said, "--python PATH for what is installed")

    def _of_choice(self, choice: Choice) -> Answer:
        """The answer of lines that hold together: of each version or commit that they name, where all agree."""
        targets = dict[str, Required]()
        for each in choice.required:
            if not each.constraint or each.version or each.ref:
                if each.why:
                    return self._said("unknown", "", f"{each.place}: {each.why}", "--python PATH for what is installed")
                if name := each.version or each.ref:
                    targets.setdefault(name, each)
        if not targets:
            self.version = None
            spec = next((f" ({each.spec})" for each in choice.required if each.spec), "")
            remedy = f"{self.known.distribution}==VERSION in that line, or --python PATH for what is installed"
            return self._said("unknown", "", f"no single exact version is required{spec}", remedy)
        return self._of_targets(targets, choice)

    def _of_targets(self, targets: dict[str, Required], choice: Choice) -> Answer:
        answers = [self._of_target(name, each) for name, each in targets.items()]
        versions = [name for name, each in targets.items() if each.version]
        against = next(((v, r) for v in versions if (r := refusing(v, choice.required))), None)
        if against and len({answer.state for answer in answers}) == 1:
            said = f"{against[0]} is required, and {against[1].place} does not allow it: {against[1].spec}"
            return self._said("unknown", "", said, "make these lines agree, or --python PATH for what is installed")
        if len({answer.state for answer in answers}) == 1:
            return answers[0]
        said = " and ".join(
            f"{name} ({answer.state}, {targets[name].place})" for name, answer in zip(targets, answers, strict=True)
        )
        return self._said("unknown", "", f"required as {said}", "make these lines agree, or --python PATH")

    def _of_target(self, name: str, asked: Required) -> Answer:
        """The answer of one version, commit or tag."""
        self.version = name
        if asked.version:
            return self._decided(self._of_release(asked.version), "release")
        if origins.is_commit(name):
            matching = [tree for tree in self.known.trees if tree.state != "patched" and tree.name.startswith(name)]
            release = next((release for commit, release in self.commits.items() if commit.startswith(name)), None)
            if matching or release:
                return self._decided(matching or self._of_release(release or ""), "release")
            return self._decided([], "release")
        version = origins.version_of_tag(name)
        if version and asked.repository.lower() == self.known.repository.lower():
            return self._decided(self._of_release(version), "release")
        what = "a tag of a fork" if version else "a branch or tag, which does not say its code"
        said = f"{asked.place} asks for {name} of {asked.repository}: {what}"
        return self._said("unknown", "", said, "name a commit or release there, or --python PATH for what is installed")

    def _by_release(self, folders: list[Path]) -> Answer:
        """No patch says which functions matter: the release decides, where it is the code that would be imported."""
        if self.installed is None or self.installed.folder is None:
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
            return self._absent(f"no {' or '.join(sorted(needed))} is there: older code, or moved")
        try:
            digests = {name: self._function(files[name.split(":")[0]], *name.split(":")) for name in names}
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError, StoreError) as error:
            return self._said("unknown", "", f"a file of it cannot be read: {error}", measurable=True)
        matching = [tree for tree in self.known.trees if tree.code == digests]
        if matching:
            return self._decided(matching, "code")
        if applied(Path(self.root), self.id, {name for one in self.known.patches.values() for name in one.paths}):
            said = "its patch was put in by --apply, with others, and all files are as it left them"
            return self._said("patched", "code", said)
        strange = [
            name for name, digest in digests.items() if digest not in {tree.code.get(name) for tree in self.known.trees}
        ]
        what = f"of no measured tree: {', '.join(name.split(':')[1] for name in strange)}"
        said = what if strange else "its functions are from several measured trees"
        return self._said("unknown", "", said, measurable=True)

    def _function(self, file: Path | None, path: str, name: str) -> str | None:
        """The digest of the function in a file of the environment, and its place for the report."""
        if file is None:
            return None
        if file not in self.parsed:
            self.parsed[file] = functions(bytes_of(file, LARGEST))
        function = self.parsed[file].get(name)
        self.root = self.root or str(file.parents[len(Path(path).parts) - 1])
        if function:
            self.places.append(Place(file=str(file), line=function.line, function=name))
        return function.digest if function else None

    def _of_release(self, version: str) -> list[KnownTree]:
        return [
            tree
            for tree in self.known.trees
            if tree.state != "patched" and tree.release and same(tree.release, version)
        ]

    def _decided(self, matching: list[KnownTree], by: Literal["code", "release"]) -> Answer:
        """The answer where code or release is that of these trees, which may speak of other packages beside them."""
        mine = self._version
        met = [tree for tree in matching if self._beside(tree)]
        met.sort(key=lambda tree: not same(tree.release or tree.name, mine))
        states = {tree.state for tree in met}
        if len(states) == 1:
            answer = self._said(states.pop(), by, self._reason(met, by))
            patch = next((tree.patch for tree in met if tree.patch and tree.state == "buggy"), None)
            return replace(answer, patch=patch or "", label=self._label(met))
        if not matching:
            said = f"no receipt speaks of {self.known.distribution} {self._version}"
            return self._said(
                "unknown", "", said, place.of_clone(f"python -m reproducers.run {self.id} --at {self._version}")
            )
        wanted = sorted({f"{name} {release}" for tree in matching for name, release in tree.beside.items()})
        if not states and wanted:
            said = f"the same code was measured beside {', '.join(wanted)} only"
            return self._said("unknown", "", said, self._pin_remedy(matching))
        return self._said("unknown", "", "the same code was measured with the bug and without", measurable=True)

    def _label(self, trees: list[KnownTree]) -> str:
        """The release or commit whose code it is, of several the installed one, else the first and the last."""
        names = list(dict.fromkeys(tree.release or tree.name for tree in trees))
        own = [name for name in names if same(name, self.version or "")]
        return own[0] if own else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"

    def _beside(self, tree: KnownTree) -> bool:
        """Whether the packages on which the answer depends are installed in the releases that were measured."""
        seen = [
            (self.environment.distribution(name), release)
            for name, release in tree.beside.items()
            if self.environment.distribution(name)
        ]
        agreed = all(same(each.version, release) for each, release in seen if each)
        return not tree.beside or (bool(seen) and agreed)

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

    def _pin_remedy(self, trees: list[KnownTree]) -> str:
        names = {name for tree in trees for name in tree.beside}
        have = [f"{name} {each.version}" for name in sorted(names) if (each := self.environment.distribution(name))]
        if not have:
            return f"install {' or '.join(sorted(names))}, or ignore it: --ignore {self.id}"
        record = place.of_clone(str(place.PACKS / self.known.folder / "pack.yaml"))
        return f"give {record} a pin that needs {', '.join(have)}, and run the pack --at it"

    @property
    def _version(self) -> str:
        return short(self.version or "?")

    def _said(
        self,
        state: State,
        by: Literal["code", "release", ""],
        reason: str,
        remedy: str = "",
        measurable: bool = False,
    ) -> Answer:
        if measurable and not remedy:
            remedy = place.of_clone(f"python -m reproducers.audit {self.id}{self.environment.option} --run")
        return Answer(
            pack=self.id,
            state=state,
            distribution=self.known.distribution,
            version=self.version,
            by=by,
            cost=self.known.title,
            harm=self.known.harm,
            effect=self.known.effect,
            reason=reason,
            remedy=remedy,
            root=self.root,
            places=tuple(self.places),
            measurable=measurable,
        )
