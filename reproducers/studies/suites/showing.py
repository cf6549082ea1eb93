"""What a person sees of upstream's tests: a table a pack, then every broken, mended and flaky test with its error."""

from __future__ import annotations

import re

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reproducers.record.upstream_tests import UpstreamTests
from reproducers.studies.suites.comparing import WORDS

MISSING = re.compile(r"No module named '([\w.]+)'")
NAMED = {"broken": "red", "mended": "green", "flaky": "yellow"}


def wanting(result: UpstreamTests) -> list[str]:
    """The modules that tests asked for on the pristine tree and that are not here."""
    said = [result.reason, *(row.pristine.error for row in result.outcomes)]
    return sorted({match[1].partition(".")[0] for text in said for match in MISSING.finditer(text)})


def summary(records: list[UpstreamTests], out: Console) -> None:
    """The table, a line a test file, and below it what needs a look."""
    for result in records:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"pack{result.pack:02d} {result.at} {result.lane}")
        table.add_column("test file", overflow="fold")
        for word in WORDS:
            table.add_column(word.replace(" ", "\n"), justify="right", no_wrap=True)
        for path in result.files:
            rows = [row.compared for row in result.outcomes if row.test.partition("::")[0] == path]
            table.add_row(escape(path.rpartition("/")[2]), *(str(rows.count(word)) for word in WORDS))
        out.print(table)
        for shown, colour in NAMED.items():
            for row in result.outcomes:
                if row.compared == shown:
                    side = row.pristine if shown == "mended" else row.patched
                    out.print(f"[{colour}]{shown}[/] {escape(row.test)}\n  {escape(side.error or side.outcome)}")
        said = f"[red]{result.verdict.value}[/]: " if result.verdict else ""
        out.print(f"pack{result.pack:02d}: {said}{escape(result.reason)}")
        for module in wanting(result):
            stood = "stand_ins of that file in packs/upstream_tests.yaml, where an empty module does"
            out.print(f"  fix: pip install what has {escape(module)}, which upstream's tests import; or {stood}")
