"""Write the report page from packs and receipts, as static HTML: ``python -m reproducers.site [--out build/site]``.

The site runs no script, loads nothing from elsewhere, and holds copies of the newest receipts. ``releases.html`` says
which bugs has which release, ``index/DISTRIBUTION.json`` the same for programs, and ``feed.xml`` which packs changed.
The same input gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reproducers.desk import unwritten
from reproducers.desk.page.publish import publish, refuse_foreign
from reproducers.record.schema import ROOT, load_packs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="folder of the site, replaced whole")] = ROOT / "build" / "site",
) -> None:
    """Write the report page of all packs, hosts and training runs."""
    from reproducers.desk.page.pages import pages

    refuse_foreign(out)
    files = pages(unwritten.refuse(load_packs()), ROOT / "receipts")
    publish(files, out)
    count = sum(name.endswith(".html") for name in files)
    typer.echo(f"{count} pages in {out}, open {out / 'index.html'}")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
