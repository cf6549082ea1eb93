"""The packs that a command line names, one line about each, and what is asked of them beside their checks."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from patchlane.base.errors import PatchlaneError
from patchlane.base.wording import short
from reproducers.record.schema import Pack, load_named, load_packs

Census = Annotated[
    bool | None,
    typer.Option(
        "--census/--no-census",
        help="compare all that calls do on both trees where no check refuses a patch (default: on the cpu lane)",
    ),
]


def counted(census: bool | None, lane: str) -> bool:
    """Whether a census is taken: as the command line says, else on the CPU lane."""
    return lane == "cpu" if census is None else census


def list_packs(packs: list[Pack], as_json: bool) -> None:
    """Print one line for each pack."""
    if as_json:
        rows = [{"id": p.id, "title": p.title, "kind": p.kind, "lanes": sorted(p.lanes)} for p in packs]
        print(json.dumps(rows, indent=1))
        return
    for pack in packs:
        lanes = "+".join(sorted(pack.lanes))
        pin = f"{pack.upstream.distribution} {short(pack.pins['live'].origin)}"
        print(f"{pack.id}  {pack.kind:9} {lanes:9} {pin:32} {pack.title}")


def chosen(names: list[str], run_all: bool, lane: str, arm: str) -> list[Pack]:
    """The requested packs. Raises PatchlaneError for an unknown lane, arm or pack, or if no pack is named."""
    if lane not in ("cpu", "cuda") or arm not in ("both", "pristine", "patched"):
        raise PatchlaneError(f"--lane {lane} --arm {arm}", "--lane cpu|cuda --arm both|pristine|patched")
    packs = [p for p in load_packs() if lane in p.lanes] if run_all else load_named(names)
    if not packs:
        raise PatchlaneError("no pack named", "python -m reproducers.run --list")
    return packs
