"""Ask one tree after another: the pristine arm runs, unless a receipt has the answer already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reproducers.base.errors import PatchlaneError
from reproducers.evidence.saving import Recorder
from reproducers.record.schema import Pack
from reproducers.studies.versions import answers
from reproducers.studies.versions.answers import Answer, Word
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.store import Store

Tell = Callable[[Answer], None]


@dataclass
class Asker:
    """One pack in one lane, and where its receipts are looked for and written.

    ``clone``: where commits come from. ``again``: run even where a receipt answers. ``tell`` hears of each answer.
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
    asked: dict[tuple[str, int], Answer] = field(default_factory=dict)

    def ask(self, tree: str, repeats: int = 1) -> Answer:
        """The answer of a release or a full SHA; a tree that cannot be had is one that cannot be tested."""
        key = tree, repeats
        if key not in self.asked:
            known = None if self.again else answers.kept(self.pack, self.lane, tree, self.folders, repeats)
            self.asked[key] = known or self._run(tree, repeats)
            self.tell(self.asked[key])
        return self.asked[key]

    def command(self, tree: str, repeats: int) -> list[str]:
        """The arguments of ``python -m reproducers.run`` that do the same."""
        words = [self.pack.id, "--at", tree, "--arm", "pristine", "--lane", self.lane]
        words += ["-n", str(repeats)] if repeats > 1 else []
        words += ["--timeout", f"{self.timeout_s:g}"] if self.timeout_s else []
        return words + (["--upstream", str(self.clone)] if self._clone(tree) else [])

    def _clone(self, tree: str) -> Path | None:
        return self.clone if len(tree) == 40 and self.clone else None

    def _run(self, tree: str, repeats: int) -> Answer:
        upstream = self._clone(tree)
        request = Request(tree, self.lane, "pristine", repeats, upstream, False, self.threads, self.timeout_s)
        try:
            run = execute(self.pack, request, self.store, self.say)
        except PatchlaneError as error:
            return Answer(tree, Word.CANNOT, error.what)
        self.recorder.command = self.command(tree, repeats)
        self.recorder.write(run)
        word, why = answers.of_arms([result.arm() for result in run.pristine], run.ruling)
        return Answer(tree, word, why, self.recorder.written[-1][1], False, len(run.pristine))
