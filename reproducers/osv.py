"""Write each pack as a record in the format of Open Source Vulnerabilities: ``python -m reproducers.osv``.

Scanners read it (docs/osv.md). With ``--serve PORT`` the records answer queries as api.osv.dev does, on this machine
alone, until the verb is interrupted: ``pip-audit`` reads them so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reproducers.desk import unwritten
from reproducers.record.schema import ROOT, load_packs, load_releases

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    output: Annotated[Path, typer.Option(help="folder of the records, replaced whole")] = ROOT / "build" / "osv",
    site: Annotated[str, typer.Option(help="address of the report page, for references to patches and receipts")] = "",
    serve: Annotated[
        int | None, typer.Option(min=1, max=65535, help="write nothing, answer queries at this port")
    ] = None,
) -> None:
    """Write a record for each pack that names a bug, and all of them as osv-scanner's archive."""
    from reproducers.desk.page import osv, publish, serving
    from reproducers.desk.page.standings import told
    from reproducers.evidence.manifest import entry_of
    from reproducers.evidence.receipts import read
    from reproducers.evidence.shelf import chain

    root, packs = ROOT / "receipts", [pack for pack in unwritten.refuse(load_packs()) if pack.names_bug]
    if serve is None:
        publish.refuse_foreign(output, "--output")

    def made() -> list[osv.Record]:
        every = [told(pack, entry_of(pack, root), map(read, chain(root / f"{pack.number:02d}"))) for pack in packs]
        return osv.records(every, load_releases(ROOT / "packs"), site)

    if serve is not None:
        return serving.answer(made, serve, typer.echo)
    found = made()
    publish.publish(osv.files(found), output, "--output")
    typer.echo(f"{len(found)} records in {output}")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
