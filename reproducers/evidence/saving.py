"""Write the receipts of several runs, even where their folder is full."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from patchlane.base import disk
from patchlane.base.wording import count
from reproducers.evidence import receipts
from reproducers.record.schema import ROOT
from reproducers.trial.experiment import Run, expected
from reproducers.upstream.store import Store


def places(store: Store, upstream: Path | None = None) -> dict[str, str]:
    """{folder of this machine: the role that receipts write for it}."""
    roles = {str(store.root): "<store>", str(ROOT): "<repo>", sys.prefix: "<venv>", sys.base_prefix: "<python>"}
    roles |= {str(Path.home()): "<home>", tempfile.gettempdir(): "<tmp>"}
    if upstream is not None:
        roles |= {str(upstream): "<upstream>", str(upstream.resolve()): "<upstream>"}
    return {path: role for path, role in roles.items() if path not in ("/", "/usr", ".")}


class Recorder:
    """Write each run's receipt as the run ends, so that an interrupt loses no finished run."""

    def __init__(self, root: Path, host: str, command: list[str]) -> None:
        self.root, self.host, self.command = root, receipts.alias(host), command
        self.spare: Path | None = None
        self.lock = threading.Lock()
        self.written: list[tuple[Run, Path]] = []
        self.refused: list[OSError] = []

    def write(self, run: Run) -> None:
        """Write the receipt, into a temporary folder if its own folder refuses the file; none of a mistyped release."""
        if run.mistyped:
            return
        roles = places(Store(), run.request.upstream)
        with self.lock:
            try:
                path = receipts.write(run, self.spare or self.root, self.host, self.command, roles)
            except OSError as error:
                self.refused.append(error)
                self.spare = Path(tempfile.mkdtemp(prefix="patchlane-receipts-"))
                path = receipts.write(run, self.spare, self.host, self.command, roles)
            self.written.append((run, path))

    def left(self) -> str:
        """What an interrupted verb leaves, in words."""
        kept = f"{count(len(self.written), 'receipt')} of finished runs in {self.spare or self.root}"
        return f"{kept if self.written else 'no run had finished'}; nothing is half-written"

    def tell(self, out: Console) -> bool:
        """Print the paths of receipts and logs. Some in a temporary folder: print the remedy, return False."""
        for error in self.refused:
            out.print(f"[red]error: {escape(disk.described(error, self.root).what)}[/]")
            out.print(f"  fix: make room, then: cp -r {escape(str(self.spare))}/. {escape(str(self.root))}/")
        for run, path in self.written:
            out.print(f"[dim]receipt {escape(str(path))}[/]")
            if run.ruling.verdict not in expected(run.pack, run.request):
                out.print(f"log {escape(str(path.with_suffix('.log')))}")
        return self.spare is None
