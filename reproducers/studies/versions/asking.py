"""Ask one tree after another: the pristine arm runs, unless a receipt has the answer already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from reproducers.evidence import receipts, saving
from reproducers.evidence.saving import Recorder
from reproducers.record.origin import Built
from reproducers.record.schema import Pack
from reproducers.studies.versions import answers
from reproducers.studies.versions.answers import Answer, Asked, Word
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.built import build_commit
from reproducers.upstream.store import Store

Tell = Callable[[Answer], None]


@dataclass
class Asker:
    """One pack in one lane, and where its receipts are looked for and written.

    ``clone``: where commits come from. ``again``: run even where a receipt answers. ``begin`` hears of each tree that
    is to run, ``tell`` of each answer. ``build``: the command that builds each commit first. ``check``: the bug
    checks, by name or pattern, that alone decide.
    """

    pack: Pack
    lane: str
    store: Store
    recorder: Recorder
    folders: list[Path]
    clone: Path | None = None
    again: bool = False
    timeout_s: float | None = None
    threads: int = 1
    tell: Tell = lambda answer: None
    say: Callable[[str, str], None] = lambda arm, line: None
    build: str | None = None
    check: str | None = None
    begin: Callable[[str, int], None] = lambda tree, repeats: None
    asked: dict[tuple[str, int], Answer] = field(default_factory=dict)

    def ask(self, tree: str, repeats: int = 1) -> Answer:
        """The answer of a release or a full SHA; a tree that cannot be had is one that cannot be tested."""
        key = tree, repeats
        if key not in self.asked:
            asked = Asked(self.check, self._built(tree))
            known = None if self.again else answers.kept(self.pack, self.lane, tree, self.folders, repeats, asked)
            if known is None:
                self.begin(tree, repeats)
            self.asked[key] = known or self._run(tree, repeats)
            self.tell(self.asked[key])
        return self.asked[key]

    def command(self, tree: str, repeats: int) -> list[str]:
        """The arguments of ``python -m reproducers.run`` that do the same."""
        words = [self.pack.id, "--at", tree, "--arm", "pristine", "--lane", self.lane]
        words += ["-n", str(repeats)] if repeats > 1 else []
        words += ["--timeout", f"{self.timeout_s:g}"] if self.timeout_s else []
        words += ["--upstream", str(self.clone)] if self._clone(tree) else []
        return words + (["--build", self.build] if self.build and self._clone(tree) else [])

    def told(self, text: str) -> str:
        """The text as receipts have it: without paths of this machine."""
        return receipts.redact(text, saving.places(self.store, self.clone))

    def _built(self, tree: str) -> Built | None:
        """How receipts describe a built tree of this commit, but for its source; None where it is not built."""
        if self.build is None or self._clone(tree) is None:
            return None
        files = build_commit.named_files(self.build)
        told = tuple(file.model_copy(update={"name": self.told(file.name)}) for file in files)
        return Built(command=self.told(self.build), files=told, source="")

    def _clone(self, tree: str) -> Path | None:
        return self.clone if len(tree) == 40 and self.clone else None

    def _run(self, tree: str, repeats: int) -> Answer:
        upstream = self._clone(tree)
        build = self.build if upstream else None
        request = Request(
            tree, self.lane, "pristine", repeats, upstream, False, self.threads, self.timeout_s, build=build
        )
        try:
            run = execute(self.pack, request, self.store, self.say)
        except PatchlaneError as error:
            return Answer(tree, Word.CANNOT, error.what)
        if run.mistyped:
            return Answer(tree, Word.CANNOT, run.ruling.reason)
        self.recorder.command = self.command(tree, repeats)
        self.recorder.write(run)
        word, why = answers.of_arms([result.arm() for result in run.pristine], run.ruling, self.check)
        return Answer(tree, word, why, self.recorder.written[-1][1], False, len(run.pristine))
