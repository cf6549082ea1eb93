"""Add a release to ``packs/releases.yaml``, where packs, needs and stacks find its files and SHA by its name.

``python -m reproducers.release DISTRIBUTION RELEASE`` takes the digests that the package index states, and the SHA of
the release's tag where the upstream's repository answers. A release that is there stays as it is.
"""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    distribution: Annotated[str, typer.Argument(help="its name on the package index")],
    release: Annotated[str, typer.Argument(help="the release, as the index has it")],
    upstream: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="the repository on GitHub (default: that of its packs)")
    ] = None,
) -> None:
    """Write one release with its files by digest."""
    from reproducers.desk.start import known, releases
    from reproducers.record.schema import RELEASES, ROOT, load_each, load_releases

    packs = ROOT / "packs"
    listed = load_releases(packs).get(distribution, {}).get(release)
    if listed is None:
        # packs that name the release cannot be read before it is there
        repos = [pack.upstream.repo for pack in load_each(packs)[0] if pack.upstream.distribution == distribution]
        repo = upstream or next(iter(repos), None)
        found = releases.published(distribution, release, repo)
        releases.add(packs, {(distribution, release): found})
        if found.sha is None:
            asked = known.asking(repo, release) if repo else "--upstream OWNER/NAME asks its repository"
            typer.echo(f"its SHA is not known here: {asked}")
    typer.echo(f"{distribution} {release} is in packs/{RELEASES}" + (" already" if listed else ""))


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
