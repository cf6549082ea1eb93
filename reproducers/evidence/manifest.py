"""``manifest.yaml`` and ``packs/README.md`` as pure functions of packs and receipts, and the import of receipts."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from reproducers.base.errors import PatchlaneError
from reproducers.evidence import booking, heads, table
from reproducers.evidence.binding import ARMS
from reproducers.evidence.receipts import chain, digests, every, newest, read, statement_of
from reproducers.evidence.verification import refuse, verify_all
from reproducers.record.schema import ROOT, Pack, Pin, read_yaml
from reproducers.upstream.pins import stored_digest
from reproducers.upstream.store import Store, file_sha256

HEADER = "# Generated from packs/*/pack.yaml and receipts/ by `python -m reproducers.manifest refresh`. Never edit.\n"
PROVED = {
    "REPRODUCED_AND_FIXED": "validated",
    "REPRODUCED": "reproduced",
    "FIXED_UPSTREAM": "fixed-upstream(candidate)",
}
HELD = "held("
RANK = {"draft": 0, "stale": 1, "fixed-upstream(candidate)": 1, "reproduced": 2, "validated": 3, "guard": 3, "filed": 3}
PROOF = {"REPRODUCED_AND_FIXED": 2, "REPRODUCED": 1}
SHOWS = {"REPRODUCED_AND_FIXED": "bug", "REPRODUCED": "bug", "FIXED_UPSTREAM": "healthy"}


def changed_since(pack: Pack, path: Path) -> list[str]:
    """Why a receipt no longer speaks for the pack as it is: which file, or what its pin names, changed since."""
    recorded, seen = digests(path), read(path)
    patch = pack.patch_at(seen["at"])
    files = {"reproducer.py": pack.reproducer} | ({patch.name: patch} if patch else {})
    changed = [name for name, file in files.items() if recorded.get(name) != file_sha256(file)]
    pin = pack.pins.get(seen["at"])
    return [*changed, f"pins.{seen['at']}"] if pin and not same_pin(pin, seen["pin"]) else changed


def same_pin(pin: Pin, tried: dict[str, Any]) -> bool:
    """Whether a receipt's pin still names the same tree; a commit or further files may have been added since."""
    now = pin.model_dump(exclude_defaults=True)
    same = tried.get("artifacts", {}).items() <= pin.artifacts.items() and tried.get("sha") in (None, pin.sha)
    return same and booking.label(tried) == booking.label(now)


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


def affected(pack: Pack, receipts: list[Path]) -> dict[str, str]:
    """{release or SHA: verdict} over every pin whose tree any receipt tried, newest word winning."""
    found: dict[str, str] = {}
    for path in receipts:
        seen = read(path)
        if not booking.counts(seen) or booking.mismatch(pack, statement_of(path)):
            continue
        found[booking.label(seen["pin"])] = seen["verdict"]
        if "REGRESSION_GUARD_PASSED" in seen["sentinels"]:
            found[booking.label(seen["fixed_pin"])] = "FIXED_UPSTREAM"
    return dict(sorted(found.items()))


def state(pack: Pack, lanes: dict[str, dict[str, Any]]) -> str:
    """Derived lifecycle state. ``ready`` and beyond need a lint, which is not part of this function."""
    if pack.filing.decision == "hold":
        return f"{HELD}{pack.filing.reason})"
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
            "tried": affected(pack, receipts),
        }
    return {"schema_version": 1, "packs": entries}


def render(packs: list[Pack], root: Path) -> dict[str, str]:
    """{generated file: its text}."""
    return _texts(packs, _content(packs, root))


def _content(packs: list[Pack], root: Path) -> dict[str, Any]:
    return {**build(packs, root), "receipts": heads.heads(root)}


def _texts(packs: list[Pack], content: dict[str, Any]) -> dict[str, str]:
    text = HEADER + yaml.safe_dump(content, sort_keys=False, width=120)
    return {"manifest.yaml": text, "packs/README.md": table.render(packs, content["packs"])}


def demotions(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What a new manifest says worse of a pack than the one before: state, a lane, a release or commit; one line each.

    A state that a person gives or takes (held) is none.
    """
    rows = []
    for name, old in before["packs"].items():
        new = after["packs"].get(name, {"state": "gone", "lanes": {}, "tried": {}})
        states = (old["state"], new["state"])
        if not any(text.startswith(HELD) for text in states) and RANK.get(states[1], 0) < RANK.get(states[0], 0):
            rows.append(f"{name}: {states[0]} -> {states[1]}")
        for lane, one in old["lanes"].items():
            two = new["lanes"].get(lane, {"verdict": "no receipt", "changed_since": []})
            why = [text for text in two["changed_since"] if text not in one["changed_since"]]
            if PROOF.get(one["verdict"], 0) > PROOF.get(two["verdict"], 0) or why:
                said = f" ({', '.join(why)} changed since)" if why else ""
                rows.append(f"{name} {lane}: {one['verdict']} -> {two['verdict']}{said}")
        for tree, word in old["tried"].items():
            now = new["tried"].get(tree, "nothing")
            if word in SHOWS and SHOWS[word] != SHOWS.get(now):
                rows.append(f"{name} at {tree}: {word} -> {now}")
    return rows


def importable(packs: list[Pack], source: Path, root: Path) -> tuple[list[Path], int]:
    """(receipts of a host run to copy, how many are left where they are); refuses all when one is not to be believed.

    Left are those that could not test, and those of a folder that is neither pin, release nor commit. Refused are
    those that do not verify, and those of another tree than their pin names: by its name or, where the store or another
    receipt knows that tree, by its digest.
    """
    if not source.is_dir():
        raise PatchlaneError(f"{source} is not a folder", "python -m reproducers.run PACK writes build/receipts")
    refuse(verify_all(source))
    new = {path: statement_of(path) for path in every(source) if not (root / path.parent.name / path.name).exists()}
    known = booking.digests(statement_of(path) for path in root.glob("[0-9][0-9]*/[0-9]*.json"))
    foreign = [f"{path}: {why}" for path, body in new.items() if (why := _foreign(packs, path, body, known))]
    if foreign:
        said = "\n".join(foreign)
        raise PatchlaneError(
            f"receipts of another tree than their pin's:\n{said}", "delete them, and run without --upstream"
        )
    kept, linked = [], set[str | None]()
    for path, body in sorted(new.items(), key=lambda item: item[0].name, reverse=True):
        # a receipt that a later one names as its predecessor comes along, or the chain would be broken
        if booking.counts(body["predicate"]["patchlane"]) or file_sha256(path) in linked:
            kept.append(path)
            linked.add(body["predicate"]["patchlane"]["previous"])
    return kept, len(new) - len(kept)


def _foreign(packs: list[Pack], path: Path, body: dict[str, Any], known: dict[str, str]) -> str:
    """Why a receipt is of another tree than its pin says, or of no pack; "" when it is not."""
    pack = next((pack for pack in packs if f"{pack.number:02d}" == path.parent.name), None)
    if pack is None:
        return "there is no such pack"
    if not booking.counts(body["predicate"]["patchlane"]):
        return ""
    for key, digest in booking.digests([body]).items():
        wanted = known.get(key) or stored_digest(Store(), key)
        if wanted not in (None, digest):
            return f"its tree has digest {digest[:12]}, and that of {key[:12]} is {str(wanted)[:12]}"
    return booking.mismatch(pack, body)


def import_receipts(receipts: list[Path], root: Path) -> None:
    """Copy receipts with their logs; each file appears whole."""
    for receipt in receipts:
        for path in (receipt.with_suffix(".log"), receipt):
            target = root / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_name(f".tmp-{target.name}")
            shutil.copyfile(path, scratch)
            scratch.replace(target)


def _preview(packs: list[Pack], root: Path, new: list[Path]) -> dict[str, Any]:
    """The manifest's content as it would be with further receipts, none of which is copied."""
    with tempfile.TemporaryDirectory(prefix="patchlane-") as scratch:
        for path in [*root.glob("[0-9][0-9]*/*"), *new, *(path.with_suffix(".log") for path in new)]:
            link = Path(scratch) / path.parent.name / path.name
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)  # a log that an import broken off has left
            link.symlink_to(path.resolve())
        return _content(packs, Path(scratch))


def _before(packs: list[Pack], root: Path) -> dict[str, Any]:
    """The manifest on disk, or what it would be with today's receipts where it is damaged or there is none."""
    try:
        content = read_yaml(ROOT / "manifest.yaml")[1]
    except PatchlaneError:
        content = None
    return content if isinstance(content, dict) and "packs" in content else build(packs, root)
