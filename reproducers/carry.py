"""Import a team's own patches as they are: ``python -m reproducers.carry PATCH... --upstream OWNER/NAME --base X``.

PATCH is a mail, a mailbox, a plain diff, or a folder with a quilt ``series``; ``--branch NAME --clone DIR`` takes the
commits of a branch since the base. Each patch becomes a folder ``carried/QUEUE/NN_SLUG`` with a small record and the
patch, byte for byte. An entry owes no reproducer, and is no pack: lint, manifest and audit do not count it as one.
``applies``, ``series``, ``new --from-carried`` and ``audit --theirs`` take a queue by its folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.errors import CannotTestHere, PatchlaneError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    patches: Annotated[list[Path] | None, typer.Argument(metavar="PATCH", help="files, or folders with series")] = None,
    upstream: Annotated[str, typer.Option(metavar="OWNER/NAME", help="the repository that they change")] = "",
    base: Annotated[str, typer.Option(help="the release or SHA that they were made for; with --clone a tag, too")] = "",
    queue: Annotated[str | None, typer.Option(help="the queue's name (default: the first patch's)")] = None,
    origin: Annotated[str, typer.Option(metavar="URL", help="where they come from")] = "theirs",
    branch: Annotated[str | None, typer.Option(help="a branch of --clone: one entry a commit since the base")] = None,
    clone: Annotated[Path | None, typer.Option(help="a clone that has the base")] = None,
    split: Annotated[str | None, typer.Option(help="file: one entry a changed file")] = None,
    strip: Annotated[
        int | None, typer.Option("--strip", "-p", min=0, help="git's -p, where paths do not say it")
    ] = None,
    distribution: Annotated[str | None, typer.Option(help="its name on the index (default: the repository's)")] = None,
    source_root: Annotated[str | None, typer.Option(help="the folder that wheels lack: src, python")] = None,
    into: Annotated[Path | None, typer.Option(metavar="DIR", help="where queues lie (default: carried/)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the entries as JSON on stdout")] = False,
) -> None:
    """Exit 2 and write nothing where a patch is refused; what is no patch is named."""
    from reproducers.carried import changed, entry, importing
    from reproducers.carried.meeting import telling, trees
    from reproducers.carried.patches import mails
    from reproducers.studies.versions import applying
    from reproducers.trial import screen
    from reproducers.upstream.store import Store

    if not upstream or not base:
        raise PatchlaneError(
            "--upstream and --base say what the patches change", "--upstream OWNER/NAME --base RELEASE"
        )
    if bool(branch) == bool(patches):
        raise PatchlaneError("name patches, or a --branch of a --clone", "python -m reproducers.carry --help")
    if branch and clone is None:
        raise PatchlaneError("--branch is of a clone", "--clone DIR")
    if split not in (None, "file"):
        raise PatchlaneError(f"--split {split}", "--split file; mails of a mailbox are split by themselves")
    subject = importing.subject(upstream, base, clone, distribution, source_root)
    given, lacking = (
        mails.branch(clone, str(subject.base.sha), branch) if branch and clone else (mails.files(patches or []), [])
    )
    taken, left_out = importing.entries(given, subject, origin, strip, by_file=split == "file")
    name = entry.slug(queue or branch or Path(given[0].name).stem) if queue is None else queue
    made = entry.write(into or entry.FOLDER, name, taken)
    out = screen.console(as_json)
    try:
        asked = applying.Asked(Store(progress=screen.Announcer(out)), clone)
        made = changed.note(made, trees.base(made, trees.wanted(made), clone, asked))
    except CannotTestHere as error:
        lacking.append(f"the digests by which an audit finds the patches: {error.what}")
    for one in made:
        out.print(
            telling.plain_text(
                f"{one.folder}  {len(one.diff.files)} of {subject.upstream.repo} at {one.base}: {one.subject}"
            )
        )
        for remark in one.remarks:
            out.print(telling.plain_text(f"  {one.patch.name}:{remark.line}: {remark.what}"), style="yellow")
    for text in [*lacking, *left_out]:
        out.print(telling.plain_text(f"left out: {text}"), style="yellow")
    out.print(telling.plain_text(f"next: python -m reproducers.applies {made[0].folder.parent}"))
    if as_json:
        rows = [
            {**json.loads(one.model_dump_json()), "folder": str(one.folder), "remarks": one.remarks} for one in made
        ]
        typer.echo(json.dumps({"entries": rows, "left_out": [*lacking, *left_out]}, indent=1))


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
