"""``manifest.yaml`` and ``packs/README.md`` as pure functions of packs and receipts, and the import of receipts."""

from __future__ import annotations

import contextlib
import datetime
import shutil
from pathlib import Path

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256, json_sha256, temporary, write_atomic
from reproducers.base.verdicts import Verdict
from reproducers.evidence import booking, heads, shelf, table
from reproducers.evidence.receipts import digests, newest, read, statement_of
from reproducers.evidence.shelf import chain, every
from reproducers.evidence.verification import refuse, verify_all
from reproducers.kept import archive
from reproducers.record import engine
from reproducers.record.entry import ArmEntry, Entry, LaneEntry, Manifest
from reproducers.record.entry import read as read_manifest
from reproducers.record.receipt import Statement
from reproducers.record.schema import ROOT, Pack, Pin
from reproducers.training import reach, runs
from reproducers.upstream.pins import stored_digest
from reproducers.upstream.store import Store, place

PROVED = {
    Verdict.REPRODUCED_AND_FIXED: "validated",
    Verdict.REPRODUCED: "reproduced",
    Verdict.FIXED_UPSTREAM: "fixed-upstream(candidate)",
}
DERIVED_BY = (  # the code of an entry
    "patchlane/base",
    *(f"reproducers/{room}" for room in ("base", "kept", "record", "evidence", "probe/checks", "trial")),
)
HELD = "held("
TAKEN = Path("build/receipts")  # `python -m reproducers.run` writes them here
RANK = {"draft": 0, "stale": 1, "fixed-upstream(candidate)": 1, "reproduced": 2, "validated": 3, "guard": 3, "filed": 3}
PROOF = {Verdict.REPRODUCED_AND_FIXED: 2, Verdict.REPRODUCED: 1}
SHOWS = {Verdict.REPRODUCED_AND_FIXED: "bug", Verdict.REPRODUCED: "bug", Verdict.FIXED_UPSTREAM: "healthy"}


def changed_since(pack: Pack, path: Path) -> list[str]:
    """The changes to a pack since its receipt was taken: names of files, and ``pins.NAME`` for its pin."""
    recorded, details = digests(path), read(path)
    patch = pack.patch_at(details.at)
    files = {"reproducer.py": pack.reproducer} | ({patch.name: patch} if patch else {})
    changed = [name for name, file in files.items() if recorded.get(name) != file_sha256(file)]
    pin = pack.pins.get(details.at)
    moved = pin is not None and not (details.pin and same_pin(pin, details.pin))
    return [*changed, f"pins.{details.at}"] if moved else changed


def same_pin(pin: Pin, tried: Pin) -> bool:
    """Whether the receipt's pin ``tried`` still names the tree of ``pin``, to which a commit or files may be added."""
    same = tried.artifacts.items() <= pin.artifacts.items() and tried.sha in (None, pin.sha)
    return same and tried.origin == pin.origin


def lane_entry(pack: Pack, lane: str, root: Path) -> LaneEntry | None:
    """The newest receipt of a lane, reduced to the facts that a reader decides by; None without a receipt."""
    path = newest(pack, lane, root)
    if path is None:
        return None
    details = read(path)
    limit = datetime.timedelta(days=pack.lanes[lane].max_age_days)  # type: ignore[index]
    return LaneEntry(
        verdict=details.verdict,
        sentinels=details.sentinels,
        arms={
            name: ArmEntry(outcome=repeats[-1].outcome, exit_code=repeats[-1].exit_code, repeats=len(repeats))
            for name, repeats in details.arms.items()
            if repeats
        },
        host=details.host,
        versions=details.versions,
        receipt=path.relative_to(path.parent.parent).as_posix(),
        receipt_sha256=archive.sha256(path),
        log_sha256=details.log_sha256,
        taken=details.day,
        valid_until=details.day + limit,
        changed_since=changed_since(pack, path),
    )


def affected(pack: Pack, receipts: list[Path]) -> dict[str, Verdict]:
    """{release or SHA: newest verdict} of every pin whose tree a receipt tried, releases in their order.

    A tree beside other needs than the live pin's is one of its own: "0.19.0 beside transformer-engine-2.20.2".
    """
    tried: dict[str, Verdict] = {}
    for path in receipts:
        details = read(path)
        if details.pin is None or not booking.counts(details) or booking.mismatch(pack, statement_of(path)):
            continue
        key, shown = _beside(pack, details.at, booking.key(statement_of(path))), SHOWS.get(details.verdict)
        if details.arm == "pristine" and key in tried and shown in (None, SHOWS.get(tried[key])):
            continue  # it decides nothing, or nothing new, of the tree, and says nothing of the patch
        tried[key] = details.verdict
        if "REGRESSION_GUARD_PASSED" in details.sentinels and details.fixed_pin:
            tried[details.fixed_pin.origin.key] = Verdict.FIXED_UPSTREAM
    return dict(sorted(tried.items(), key=lambda item: _place(item[0])))


def _beside(pack: Pack, at: str, key: str) -> str:
    """The key of a receipt's tree: another pin's of the live pin's tree names the needs that the live one has not."""
    pin, live = pack.pins.get(at), pack.pins["live"]
    other = [need for need in pin.needs if need not in live.needs] if pin and pin.origin == live.origin else []
    return f"{key} beside {' '.join(other)}" if other else key


def _place(tree: str) -> tuple[int, Version, str]:
    """Releases by their version, then commits; a stacked tree, or one beside other needs, behind the one alone."""
    try:
        return 0, Version(tree.split()[0]), tree
    except InvalidVersion:
        return 1, Version("0"), tree


def state(pack: Pack, lanes: dict[str, LaneEntry]) -> str:
    """The pack's state, derived. ``ready`` is not given here, because it needs a lint."""
    if pack.filing.decision == "hold":
        return f"{HELD}{pack.filing.reason})"
    if not lanes:
        return "draft"
    if any(entry.changed_since for entry in lanes.values()):
        return "stale"
    if pack.kind == "guard":
        passed = all("REGRESSION_GUARD_PASSED" in entry.sentinels for entry in lanes.values())
        complete = "guard" if set(lanes) == set(pack.lanes) else "reproduced"
        return complete if passed else "draft"
    words = {PROVED.get(entry.verdict, "draft") for entry in lanes.values()}
    for word in ("draft", "fixed-upstream(candidate)"):
        if word in words:
            return word
    if pack.upstream_state.filed_url:
        return "filed"
    if "validated" in words and set(lanes) == set(pack.lanes):
        return "validated"
    return "reproduced"


def build(packs: list[Pack], root: Path) -> dict[str, Entry]:
    """{pack id: its entry}, each as ``entry_of`` has it."""
    return {pack.id: entry_of(pack, root) for pack in packs}


def entry_of(pack: Pack, root: Path) -> Entry:
    """The manifest's entry of a pack, from the store where the same code derived it from the same files before."""
    folder = root / f"{pack.number:02d}"
    key = _key(pack, folder)
    kept = place() / "cache" / "entries" / f"{key}.json"
    with contextlib.suppress(OSError, ValidationError):
        return Entry.model_validate_json(kept.read_bytes())
    entry = derived(pack, root)
    if _key(pack, folder) == key:  # nobody wrote meanwhile
        with contextlib.suppress(OSError):  # a store that can only be read keeps nothing
            write_atomic(kept, entry.model_dump_json().encode())
    return entry


def _key(pack: Pack, receipts: Path) -> str:
    """The digest of all that an entry follows from: code, pack, its files that a receipt names, and its receipts."""
    patches = {pack.patch, *map(pack.patch_at, pack.pins)}
    files = [path for path in (pack.reproducer, *patches) if path and path.is_file()]
    records = [path for path in sorted(receipts.glob("*")) if path.is_file()]
    content = {name: file_sha256(path) for name, path in [*_named(files), *_named(records)]}
    return json_sha256([engine.digest(DERIVED_BY), pack.folder.name, pack.model_dump(mode="json"), content])


def _named(files: list[Path]) -> list[tuple[str, Path]]:
    return [(f"{path.parent.name}/{path.name}", path) for path in files]


def derived(pack: Pack, root: Path) -> Entry:
    """The manifest's entry of a pack, derived anew."""
    lanes: dict[str, LaneEntry] = {
        lane: entry for lane in sorted(pack.lanes) if (entry := lane_entry(pack, lane, root))
    }
    return Entry(
        title=pack.title,
        kind=pack.kind,
        state=state(pack, lanes),
        live=str(pack.pins["live"].origin),
        lanes=lanes,
        lanes_without_receipt=[lane for lane in sorted(pack.lanes) if lane not in lanes],
        tried=affected(pack, chain(root / f"{pack.number:02d}")),
    )


def content_of(packs: list[Pack], root: Path, entries: dict[str, Entry] | None = None) -> Manifest:
    """The whole manifest: an entry for each pack, the heads of the chains of receipts, and what proved these.

    ``entries``: those of the packs, where they were derived before; what the store keeps is not asked.
    """
    return Manifest(
        verifier=engine.digest(engine.VERIFIER),
        generated=heads.digests(ROOT),
        packs={pack.id: derived(pack, root) for pack in packs} if entries is None else entries,
        training=reach.found(packs, runs.kept(root)),
        receipts=heads.heads(root),
    )


def generated(packs: list[Pack], content: Manifest) -> dict[str, str]:
    """{generated file: its text}, from the manifest's content."""
    return {"manifest.yaml": content.text, "packs/README.md": table.render(packs, content)}


def outdated(packs: list[Pack], content: Manifest) -> list[str]:
    """A line with its remedy for each generated file of the checkout that is not what ``content`` says."""
    rows = list[str]()
    with contextlib.suppress(PatchlaneError):  # a manifest that cannot be read is not current
        stated = read_manifest(ROOT / "manifest.yaml")
        rows += heads.regenerated(ROOT, stated.generated)
        # whoever changes the verifier makes no receipt wrong: until the next refresh all are proved each time
        content = content.model_copy(update={name: getattr(stated, name) for name in ("verifier", "generated")})
    for name, text in generated(packs, content).items():
        if not (ROOT / name).exists() or (ROOT / name).read_text(errors="replace") != text:
            rows.append(f"{name} is not current; fix: python -m reproducers.manifest refresh")
    return rows


def faults_of(packs: list[Pack], content: Manifest) -> list[str]:
    """A line with its remedy for each ``outdated`` file, for each validated pack whose patch training does not run, and
    for what packs say wrong of that."""
    return outdated(packs, content) + reach.faults(
        packs, {name: entry.state for name, entry in content.packs.items()}, content.training
    )


def demotions(before: dict[str, Entry], after: dict[str, Entry]) -> list[str]:
    """One line for each state, lane, and release or commit that is worse in the new entries.

    ``held`` is no demotion, because a person gives and takes it.
    """
    rows = []
    for name, old in before.items():
        new = after.get(name)
        states = (old.state, new.state if new else "gone")
        if not any(text.startswith(HELD) for text in states) and RANK.get(states[1], 0) < RANK.get(states[0], 0):
            rows.append(f"{name}: {states[0]} -> {states[1]}")
        for lane, was in old.lanes.items():
            now = new.lanes.get(lane) if new else None
            changes = [changed for changed in now.changed_since if changed not in was.changed_since] if now else []
            if PROOF.get(was.verdict, 0) > (PROOF.get(now.verdict, 0) if now else 0) or changes:
                cause = f" ({', '.join(changes)} changed since)" if changes else ""
                rows.append(f"{name} {lane}: {was.verdict} -> {now.verdict if now else 'no receipt'}{cause}")
        for tree, word in old.tried.items():
            later = new.tried.get(tree) if new else None
            if word in SHOWS and (later is None or SHOWS[word] != SHOWS.get(later)):
                rows.append(f"{name} at {tree}: {word} -> {later or 'nothing'}")
    return rows


def importable(packs: list[Pack], source: Path, root: Path) -> tuple[list[Path], int]:
    """(receipts of a host run to copy, number of receipts to leave in ``source``).

    A receipt stays there if its run could not test, or tested a folder that is neither pin, release nor commit. Raises
    PatchlaneError if any receipt does not verify, or is of another tree than its pin names: by the tree's name, or by
    its digest where the store or another receipt has this tree.
    """
    if not source.is_dir():
        raise PatchlaneError(f"{source} is not a folder", "python -m reproducers.run PACK writes build/receipts")
    refuse(verify_all(source))
    new = {
        path: statement_of(path) for path in every(source) if not archive.exists(root / path.parent.name / path.name)
    }
    known = booking.digests(statement_of(path) for path in every(root))
    foreign = [f"{path}: {why}" for path, body in new.items() if (why := _foreign(packs, path, body, known))]
    if foreign:
        raise PatchlaneError(
            "\n".join(["receipts of another tree than their pin's:", *foreign]),
            "delete them, or leave all out by --no-import, and run without --upstream",
        )
    kept, linked = [], set[str | None]()
    for path, body in sorted(new.items(), key=lambda item: item[0].name, reverse=True):
        # the predecessor of a copied receipt is copied too, or the chain would break
        if booking.counts(body.details) or file_sha256(path) in linked:
            kept.append(path)
            linked.add(body.details.previous)
    return kept, len(new) - len(kept)


def _foreign(packs: list[Pack], path: Path, body: Statement, known: dict[str, str]) -> str:
    """Why a receipt is of another tree than its pin names, or of no pack; "" otherwise."""
    pack = next((pack for pack in packs if f"{pack.number:02d}" == path.parent.name), None)
    if pack is None:
        return "there is no such pack"
    if not booking.counts(body.details):
        return ""
    for key, digest in booking.digests([body]).items():
        wanted = known.get(key) or stored_digest(Store(), key)
        if wanted not in (None, digest):
            return f"its tree has digest {digest[:12]}, {key[:12]} has {str(wanted)[:12]}"
    return booking.mismatch(pack, body)


def import_receipts(receipts: list[Path], root: Path) -> None:
    """Copy receipts with their logs and signatures; each file appears whole."""
    for receipt in receipts:
        signature = shelf.signature(receipt)
        for path in (receipt.with_suffix(".log"), *([signature] if signature.is_file() else []), receipt):
            target = root / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_name(f".tmp-{target.name}")
            shutil.copyfile(path, scratch)
            scratch.replace(target)


def preview_of(packs: list[Pack], root: Path, new: list[Path]) -> Manifest:
    """The manifest's content as if ``new`` receipts were imported; none is copied."""
    with temporary() as scratch:
        for path in [*root.glob("[0-9][0-9]*/*"), *new, *(path.with_suffix(".log") for path in new)]:
            link = Path(scratch) / path.parent.name / path.name
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)  # left by an interrupted import
            link.symlink_to(path.resolve())
        (Path(scratch) / runs.FOLDER).symlink_to((root / runs.FOLDER).resolve())
        return content_of(packs, Path(scratch))


def entries_before(packs: list[Pack], root: Path) -> dict[str, Entry]:
    """The entries of the manifest on disk; derived from today's receipts if it is damaged or absent."""
    try:
        return read_manifest(ROOT / "manifest.yaml").packs
    except PatchlaneError:
        return build(packs, root)
