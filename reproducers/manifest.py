"""The machine-written half: ``manifest.yaml`` and ``packs/README.md``, pure functions of packs and receipts.

``refresh [DIR]`` imports the verified receipts of a host run and rewrites the manifest; ``check`` regenerates and
compares it. Nothing else writes it.
"""

from __future__ import annotations

import datetime
import difflib
import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from filelock import FileLock

from reproducers import table
from reproducers.errors import PatchlaneError
from reproducers.receipts import ARMS, chain, newest, read
from reproducers.schema import ROOT, Pack, load_packs
from reproducers.store import file_sha256, write_atomic
from reproducers.verdicts import Exit
from reproducers.verification import verify_all

app = typer.Typer(add_completion=False, help=__doc__)
HEADER = "# Generated from packs/*/pack.yaml and receipts/ by `python -m reproducers.manifest refresh`. Never edit.\n"
PROVED = {
    "REPRODUCED_AND_FIXED": "validated",
    "REPRODUCED": "reproduced",
    "FIXED_UPSTREAM": "fixed-upstream(candidate)",
}


def changed_since(pack: Pack, path: Path) -> list[str]:
    """Why a receipt no longer speaks for the pack as it is: which file changed since."""
    body = json.loads(path.read_text())
    recorded = {r["name"]: r["digest"]["sha256"] for r in [*body["subject"], *body["predicate"]["configuration"]]}
    patch = pack.patch_at(body["predicate"]["patchlane"]["at"])
    files = {"reproducer.py": pack.reproducer} | ({patch.name: patch} if patch else {})
    return [name for name, file in files.items() if recorded.get(name) != file_sha256(file)]


def lane_entry(pack: Pack, lane: str, root: Path) -> dict[str, Any] | None:
    """The newest receipt of a lane, reduced to what a reader decides by."""
    path = newest(pack, lane, root)
    if path is None:
        return None
    seen = read(path)
    taken = datetime.date.fromisoformat(seen["started"][:10])
    limit = datetime.timedelta(days=pack.lanes[lane].max_age_days)  # type: ignore[index]
    arms = {
        name: {
            "outcome": seen[name][-1]["outcome"],
            "exit_code": seen[name][-1]["exit_code"],
            "repeats": len(seen[name]),
        }
        for name in ARMS
        if seen.get(name)
    }
    return {
        "verdict": seen["verdict"],
        "sentinels": seen["sentinels"],
        "arms": arms,
        "host": seen["host"],
        "versions": seen["versions"],
        "receipt": path.relative_to(path.parent.parent).as_posix(),
        "receipt_sha256": file_sha256(path),
        "log_sha256": seen["log_sha256"],
        "taken": str(taken),
        "valid_until": str(taken + limit),
        "changed_since": changed_since(pack, path),
    }


def _label(pin: dict[str, Any]) -> str:
    return str(pin.get("release") or pin["sha"]) + "".join(f" + {number:02d}" for number in pin.get("stacked_on", []))


def affected(receipts: list[Path]) -> dict[str, str]:
    """{release or SHA: verdict} over every pin that any receipt tried, newest word winning."""
    found: dict[str, str] = {}
    for path in receipts:
        seen = read(path)
        if seen["pin"] and seen["verdict"] != "UNTESTABLE":
            found[_label(seen["pin"])] = seen["verdict"]
        if "REGRESSION_GUARD_PASSED" in seen["sentinels"]:
            found[_label(seen["fixed_pin"])] = "FIXED_UPSTREAM"
    return dict(sorted(found.items()))


def state(pack: Pack, lanes: dict[str, dict[str, Any]]) -> str:
    """Derived lifecycle state. ``ready`` and beyond need a lint, which is not part of this function."""
    if pack.filing.decision == "hold":
        return f"held({pack.filing.reason})"
    if not lanes:
        return "draft"
    if any(entry["changed_since"] for entry in lanes.values()):
        return "stale"
    if pack.kind == "guard":
        passed = all("REGRESSION_GUARD_PASSED" in entry["sentinels"] for entry in lanes.values())
        complete = "guard" if set(lanes) == set(pack.lanes) else "reproduced"
        return complete if passed else "draft"
    words = {PROVED.get(entry["verdict"], "draft") for entry in lanes.values()}
    for word in ("draft", "fixed-upstream(candidate)"):
        if word in words:
            return word
    if pack.upstream_state.filed_url:
        return "filed"
    if "validated" in words and set(lanes) == set(pack.lanes):
        return "validated"
    return "reproduced"


def build(packs: list[Pack], root: Path) -> dict[str, Any]:
    """The manifest's content."""
    entries = {}
    for pack in packs:
        receipts = chain(root / f"{pack.number:02d}")
        found = {lane: lane_entry(pack, lane, root) for lane in sorted(pack.lanes)}
        lanes: dict[str, dict[str, Any]] = {lane: entry for lane, entry in found.items() if entry}
        entries[pack.id] = {
            "title": pack.title,
            "kind": pack.kind,
            "state": state(pack, lanes),
            "live": pack.pins["live"].label,
            "lanes": lanes,
            "lanes_without_receipt": [lane for lane, entry in found.items() if entry is None],
            "tried": affected(receipts),
        }
    return {"schema_version": 1, "packs": entries}


def render(packs: list[Pack], root: Path) -> dict[str, str]:
    """{generated file: its text}."""
    content = build(packs, root)
    text = HEADER + yaml.safe_dump(content, sort_keys=False, width=120)
    return {"manifest.yaml": text, "packs/README.md": table.render(packs, content["packs"])}


def import_receipts(source: Path, root: Path) -> int:
    """Copy new receipts and logs from a host run; refuse the whole set when any of it was tampered with."""
    faults = verify_all(source)
    if faults:
        rows = "\n".join(f"{path.name}: {row}" for path, found in faults.items() for row in found)
        raise PatchlaneError(f"receipts in {source} do not verify:\n{rows}", "run the packs again on that host")
    count = 0
    for receipt in sorted(p for p in source.glob("[0-9][0-9]*/*.json") if not p.name.startswith(".tmp-")):
        for path in (receipt.with_suffix(".log"), receipt):
            target = root / path.parent.name / path.name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                scratch = target.with_name(f".tmp-{target.name}")
                shutil.copyfile(path, scratch)
                scratch.replace(target)
                count += path.suffix == ".json"
    return count


@app.command()
def refresh(
    source: Annotated[Path | None, typer.Argument(help="folder of new receipts, such as build/receipts")] = None,
) -> None:
    """Import receipts and rewrite manifest.yaml; prints what changed."""
    root = ROOT / "receipts"
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "manifest.lock"):
        if source is not None:
            if not source.is_dir():
                raise PatchlaneError(
                    f"{source} is not a folder", "python -m reproducers.run PACK writes build/receipts"
                )
            typer.echo(f"{import_receipts(source, root)} new receipts from {source}")
        for name, after in render(load_packs(), root).items():
            before = (ROOT / name).read_text() if (ROOT / name).exists() else ""
            write_atomic(ROOT / name, after.encode())
            for line in difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", "", "", 1, ""):
                typer.echo(line)
            typer.echo(f"{name} is current" if before == after else f"{name} rewritten")


@app.command()
def check() -> None:
    """Exit 1 when the manifest is not what packs and receipts give, or a receipt does not verify."""
    root = ROOT / "receipts"
    faults = [f"{p.name}: {row}" for p, rows in verify_all(root).items() for row in rows]
    for name, text in render(load_packs(), root).items():
        if not (ROOT / name).exists() or (ROOT / name).read_text() != text:
            faults.append(f"{name} is not current; mend: python -m reproducers.manifest refresh")
    for fault in faults:
        typer.echo(fault)
    typer.echo("manifest check: " + (f"{len(faults)} faults" if faults else "clean"))
    raise typer.Exit(Exit.CONTRADICTED if faults else Exit.OK)


if __name__ == "__main__":
    from reproducers.cli import guarded

    guarded(app)
