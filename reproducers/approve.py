"""Approve what a pack would post: ``python -m reproducers.approve pack05 --as comment``, at a terminal.

It writes all files to a folder, lets the person read them, asks for the person's name and the first characters of the
files' digest, and records name, day and digests in the pack's approval.yaml. Any later change voids it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchlane.base.clock import today
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit

if TYPE_CHECKING:
    from reproducers.desk.gate.checklist import Checklist

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Refused(PatchlaneError):
    """The approval is not recorded."""

    exit_code = Exit.CONTRADICTED


def may_be_approved(checklist: Checklist) -> None:
    """Raises Refused if any point but the approval is open."""
    failing = [point for point in checklist.open if point.name != "approval"]
    if failing:
        rows = "\n".join(f"{point.name}: {point.what}" for point in failing)
        what = f"{checklist.pack.id} as {checklist.form} is not ready to be read:\n{rows}"
        raise Refused(what, failing[0].remedy)


def lay_out(checklist: Checklist, folder: Path | None) -> None:
    """Write the files to a folder for the person to read, by default one below build/filing.

    Raises PatchlaneError if the folder holds other files or cannot be written.
    """
    from reproducers.desk.text import dossier
    from reproducers.record.schema import ROOT

    digest = dossier.digest(checklist.files)
    folder = folder or ROOT / "build" / "filing" / f"{checklist.pack.id}-{checklist.form}-{digest[:8]}"
    try:
        dossier.write(folder, checklist.files)
    except OSError as error:
        raise PatchlaneError(f"--read {folder}: {error.strerror}", "--read a folder that you may write") from error
    except PatchlaneError as error:
        raise PatchlaneError(error.what, "--read another folder") from error
    typer.echo(f"Read these files in {folder}:")
    for name in sorted(checklist.files):
        typer.echo(f"  {name}")
    typer.echo(f"Their digest is {digest}")


def confirmed(digest: str, typed: str) -> None:
    """Raises Refused unless ``typed`` is the beginning of the digest, of eight characters or more."""
    answer = typed.strip().lower()
    if len(answer) < 8 or not digest.startswith(answer):
        raise Refused(f"{typed!r} is not the beginning of the digest; nothing is recorded", "read the files, try again")


def at_terminal(command: str) -> None:
    """Raises PatchlaneError if no person can answer, because a script can approve for nobody."""
    if not sys.stdin.isatty():
        raise PatchlaneError("only a person at a terminal can approve", f"in a terminal: {command}")


def _name(text: str) -> str:
    from reproducers.desk.gate.approval import full_name

    try:
        return full_name(text)
    except ValueError as error:
        raise PatchlaneError(f"{text!r} {error}", "approve again, with your full name") from error


@app.command()
def main(
    pack: Annotated[str, typer.Argument(help="pack05, 05 or 5")],
    form: Annotated[str, typer.Option("--as", help="issue, pr or comment")],
    read: Annotated[Path | None, typer.Option(metavar="DIR", help="folder for the files to read")] = None,
    clone: Annotated[Path | None, typer.Option(metavar="DIR", help="a clone of the upstream: try its main too")] = None,
) -> None:
    """Record that a person has read exactly these files; the person types a full name and the digest's beginning."""
    from reproducers.desk.gate import approval
    from reproducers.desk.gate.checklist import form_of, judge
    from reproducers.desk.text import dossier
    from reproducers.record.schema import ROOT, load_named

    (named,) = load_named([pack])
    form_of(named, form)
    at_terminal(f"python -m reproducers.approve {pack} --as {form}")
    checklist = judge(pack, form, today(), clone)
    may_be_approved(checklist)
    shown = dossier.digest(checklist.files)
    lay_out(checklist, read)
    person = _name(typer.prompt("Your full name, if you have read all of them", default="", show_default=False))
    confirmed(shown, typer.prompt("The first 8 characters of the digest, to approve them"))
    if dossier.digest(dossier.files(checklist.pack, ROOT / "receipts", form)) != shown:
        raise Refused("the files changed while they were read; nothing is recorded", "approve again")
    record = {"form": form, "name": person, "date": checklist.day, "digest": shown}
    given = approval.Approval.model_validate(record | {"files": dossier.sums(checklist.files)})
    path = approval.write(checklist.pack, given)
    typer.echo(f"{path.parent.name}/{path.name} records {person} and the digest {shown[:8]}; commit it")
    typer.echo(f"next: python -m reproducers.preflight {checklist.pack.id} --as {form}")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
