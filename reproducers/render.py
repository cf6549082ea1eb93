"""Render the text of a pack's issue, pull request or comment: ``python -m reproducers.render pack05 --as comment``.

``body.md.j2`` of the pack fills the blocks of a form in ``templates/forms/``, one folder an upstream whose own form it
follows. Facts come from pack.yaml, the manifest and the newest receipts only: a number is named by lane, arm and check,
never typed. It prints the text, or writes a folder of the files that a person reads and posts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from reproducers.desk import unwritten
from reproducers.desk.text.render import FORMS, forms, own, render
from reproducers.record.schema import ROOT, load_named, load_packs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    packs: Annotated[list[str], typer.Argument(help="packs, as pack05; or all")],
    form: Annotated[str | None, typer.Option("--as", help="issue, pr or comment; default: the pack's own")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for a folder a pack: text, title, attachment, patch")] = None,
) -> None:
    """Print the text of each pack, or write it with title, attachment, log and patch."""
    if form is not None and form not in FORMS:
        raise PatchlaneError(f"--as {form}", f"--as {', '.join(FORMS)}")
    every = packs == ["all"]
    if out is not None:
        disk.usable_folder(out, "--out DIR names another folder")
    for pack in load_packs() if every else load_named(packs):
        if every and form and form not in forms(pack):
            typer.echo(f"{pack.id} cannot be a {form}", err=True)
            continue
        unwritten.refuse([pack])
        if out is None:
            typer.echo(render(pack, ROOT / "receipts", form), nl=False)
        else:
            from reproducers.desk.text import dossier

            folder = dossier.write(out / pack.id, dossier.files(pack, ROOT / "receipts", form or own(pack)))
            typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
