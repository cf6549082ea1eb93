"""Receipts of a set of runs, written even where their folder is full."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from reproducers.base import disk
from reproducers.evidence import receipts
from reproducers.record.schema import ROOT
from reproducers.trial.experiment import Run, expected
from reproducers.upstream.store import Store


def places(store: Store, upstream: Path | None = None) -> dict[str, str]:
    """This machine's folders and the roles that stand for them in receipts."""
    roles = {str(store.root): "<store>", str(ROOT): "<repo>", sys.prefix: "<venv>", sys.base_prefix: "<python>"}
    roles |= {str(Path.home()): "<home>", tempfile.gettempdir(): "<tmp>"}
    if upstream is not None:
        roles |= {str(upstream): "<upstream>", str(upstream.resolve()): "<upstream>"}
    return {path: role for path, role in roles.items() if path not in ("/", "/usr", ".")}


def record(runs: list[Run], root: Path, host: str, command: list[str], out: Console) -> bool:
    """Write each run's receipt; False where one had to go to the temporary folder, which is told with the way back."""
    spare: Path | None = None
    for run in runs:
        roles = places(Store(), run.request.upstream)
        try:
            path = receipts.write(run, spare or root, host, command, roles)
        except OSError as error:
            spare = Path(tempfile.mkdtemp(prefix="patchlane-receipts-"))
            path = receipts.write(run, spare, host, command, roles)
            out.print(f"[red]error: {escape(str(disk.described(error, root)))}[/]")
            out.print(f"  mend: make room, then: cp -r {escape(str(spare))}/. {escape(str(root))}/")
        out.print(f"[dim]receipt {escape(str(path))}[/]")
        if run.ruling.verdict not in expected(run.pack, run.request):
            out.print(f"log {escape(str(path.with_suffix('.log')))}")
    return spare is None
