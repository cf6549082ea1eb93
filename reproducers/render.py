"""Render a pack's issue or PR text: ``python -m reproducers.render pack05``. It prints; a person posts.

``body.md.j2`` of the pack fills the blocks of a form in ``templates/``. Facts come from pack.yaml and the newest
receipts only: a number is named by lane, arm and check, never typed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from reproducers.errors import PatchlaneError
from reproducers.receipts import newest, read
from reproducers.schema import ROOT, Pack, load_packs, select
from reproducers.store import write_atomic

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Facts:
    """What a body may state: look-ups in the newest receipt of each lane at the live pin."""

    def __init__(self, pack: Pack, receipts: Path) -> None:
        self.pack = pack
        self.found = {lane: newest(pack, lane, receipts) for lane in pack.lanes}

    def _receipt(self, lane: str) -> dict[str, Any]:
        path = self.found.get(lane)  # type: ignore[call-overload]
        if path is None:
            raise PatchlaneError(
                f"{self.pack.id} has no receipt of the {lane} lane",
                f"python -m reproducers.run {self.pack.id} --lane {lane}, then python -m reproducers.manifest refresh",
            )
        return read(path)

    def _check(self, lane: str, arm: str, name: str) -> dict[str, Any]:
        arms = self._receipt(lane).get(arm) or [{"checks": []}]
        for check in arms[-1]["checks"]:
            if check["name"] == name:
                return dict(check)
        raise PatchlaneError(
            f"{self.pack.folder.name}/body.md.j2: the {lane} receipt's {arm} arm has no check {name!r}",
            "name a check as the receipt does, or take a new receipt",
        )

    def measured(self, lane: str, arm: str, name: str) -> str:
        check = self._check(lane, arm, name)
        return _said(check["measured"], check["unit"])

    def limit(self, lane: str, arm: str, name: str) -> str:
        check = self._check(lane, arm, name)
        return _said(check["limit"], check["unit"])

    def versions(self, lane: str) -> dict[str, str]:
        return dict(self._receipt(lane)["versions"])

    def host(self, lane: str) -> str:
        host = self._receipt(lane)["host"]
        return str(host["gpus"][0]["name"]) if lane == "cuda" else f"CPU ({host['machine']})"


def _said(value: float | str | None, unit: str) -> str:
    text = f"{value:.4g}" if isinstance(value, int | float) else str(value)
    return f"{text} {unit}".strip()


def render(pack: Pack, receipts: Path, form: str = "body.md.j2") -> str:
    """The text; PatchlaneError when the body names what no receipt holds or is not a template."""
    facts = Facts(pack, receipts)
    loader = FileSystemLoader([str(ROOT / "templates")])
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    context = {"pack": pack, "live": pack.pins["live"], "command": f"python {pack.id}.py"}
    names = ("measured", "limit", "versions", "host")
    try:
        body = environment.from_string((pack.folder / "body.md.j2").read_text())
        text = body.render(**context, **{name: getattr(facts, name) for name in names}, form=form)
    except (TemplateError, OSError) as error:
        raise PatchlaneError(f"{pack.folder.name}/body.md.j2: {error}", "correct the template") from error
    return text.strip() + "\n"


@app.command()
def main(
    packs: Annotated[list[str], typer.Argument(help="packs, as pack05")],
    out: Annotated[Path | None, typer.Option(help="folder for one file a pack (default: stdout)")] = None,
) -> None:
    """Print the issue or PR text of each pack."""
    for pack in select(packs, load_packs()):
        text = render(pack, ROOT / "receipts")
        if out is None:
            typer.echo(text, nl=False)
        else:
            write_atomic(out / f"{pack.id}.md", text.encode())


if __name__ == "__main__":
    from reproducers.cli import guarded

    guarded(app)
