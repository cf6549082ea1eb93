"""One pack as the rules see it: files, texts and manifest entry, each read once, when a rule first asks."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchlane.base.errors import PatchlaneError
from reproducers.record.entry import Entry
from reproducers.record.schema import Pack, text_of

if TYPE_CHECKING:
    from reproducers.desk.text.lookups import Facts


@dataclass
class Case:
    """A pack, where receipts and upstream trees are, and the day to judge by."""

    pack: Pack
    receipts: Path
    store: Path
    today: datetime.date
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> Path:
        """The template of the pack's text."""
        return self.pack.folder / "body.md.j2"

    @property
    def record(self) -> Path:
        return self.pack.folder / "pack.yaml"

    @cached_property
    def source(self) -> str:
        """The text of ``body.md.j2``, empty where there is none."""
        return text_of(self.body) if self.body.is_file() else ""

    @cached_property
    def record_text(self) -> str:
        return text_of(self.record)

    @cached_property
    def rendered(self) -> dict[str, str] | PatchlaneError:
        """{form: text}, or the error that kept the pack from rendering."""
        made = self._made
        return made if isinstance(made, PatchlaneError) else {form: text for form, (text, _) in made.items()}

    @cached_property
    def logs(self) -> dict[str, str]:
        """{form: all logs that are attached to its text}; empty where the pack does not render."""
        made = {} if isinstance(self._made, PatchlaneError) else self._made
        return {form: b"".join(facts.logs.values()).decode() for form, (_, facts) in made.items()}

    @cached_property
    def _made(self) -> dict[str, tuple[str, Facts]] | PatchlaneError:
        from reproducers.desk.text import render

        try:
            forms = render.forms(self.pack)
            return {form: render.rendered(self.pack, self.receipts, form, self.entry) for form in forms}
        except PatchlaneError as error:
            return error

    @cached_property
    def texts(self) -> dict[str, Any]:
        """{form: parsed text}; empty where the pack does not render, which receipt-claim reports."""
        from reproducers.desk.rules.prose.markdown import Text

        return {} if isinstance(self.rendered, PatchlaneError) else {n: Text(t) for n, t in self.rendered.items()}

    @cached_property
    def entry(self) -> Entry:
        """The pack's manifest entry, which follows from its files and receipts."""
        from reproducers.evidence.manifest import entry_of

        return entry_of(self.pack, self.receipts)

    @cached_property
    def newest(self) -> dict[str, Path]:
        """{lane: newest receipt} of the lanes that have a receipt."""
        from reproducers.evidence.receipts import newest_of

        return newest_of(self.pack, self.receipts)

    @cached_property
    def patches(self) -> dict[str, Path]:
        """{pin: its patch} of the pins that have the bug and a patch."""
        patches = {name: self.pack.patch_at(name) for name in self.pack.pins if not self.pack.healthy_at(name)}
        return {name: path for name, path in patches.items() if path is not None}

    def locate(self, snippet: str) -> tuple[Path, int]:
        """File and line where a piece of the rendered text was written, else the template's first line."""
        for part in (snippet, snippet[-30:], snippet[:30]):
            for path, text in ((self.body, self.source), (self.record, self.record_text)):
                if part.strip() and part in text:
                    return path, text[: text.index(part)].count("\n") + 1
        return self.body, 1
