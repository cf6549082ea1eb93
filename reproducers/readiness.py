"""For each pack and lane: whether this host can run it, what is missing, and the command that gets it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packaging.version import Version

from reproducers import hostfacts, index, pins, stamp
from reproducers.errors import CannotTestHere
from reproducers.hostfacts import Check, Finding
from reproducers.schema import Lane, Need, Pack, load_needs
from reproducers.store import Store
from reproducers.verdicts import Exit


def stored(store: Store, key: str, filename: str = "") -> bool:
    """Whether the store has the tree ``key`` or the artefact it is unpacked from; their bytes are not read."""
    tree = (store.root / "trees" / key).is_dir() and (store.root / "trees" / f"{key}.json").is_file()
    return tree or bool(filename and (store.root / "artifacts" / key / filename).is_file())


def upstream_findings(pack: Pack, lane: str, store: Store, online: bool) -> list[Finding]:
    """Trees of the live pin and its needs that are neither in the store nor known to be within reach."""
    pin, found = pack.pins["live"], list[Finding]()
    if pin.release is None and pin.sha is not None and not stored(store, pin.sha):
        source = pin.source or f"https://github.com/{pack.upstream.repo}"
        clone = f"git clone {source} DIR && python -m reproducers.run {pack.id} --lane {lane} --upstream DIR"
        found.append(Finding(f"commit {pin.sha[:12]} of {pack.upstream.repo}", clone))
    wanted = [(f"{pack.upstream.distribution} {pin.release}", *pins.choose(pin.artifacts))] if pin.release else []
    missing = [label for label, filename, sha256 in wanted if not stored(store, sha256, filename)]
    known = load_needs(pack.folder.parent)
    missing += [f"needs {name}" for name in pin.needs if not _needs_stored(store, pins.on_lane(known[name], lane))]
    if missing and (store.offline or not online):
        found.append(Finding(f"not in the store: {', '.join(missing)}", _fetch(pack, lane, store.offline)))
    return found


def _needs_stored(store: Store, needs: list[Need]) -> bool:
    """Whether a set is there as a tree, or as the artefacts to make it from; and the sources to build for it."""
    ready = [need for need in needs if need.build is None]
    chosen, sources = ([pins.need_artifact(n) for n in some] for some in (ready, [n for n in needs if n.build]))
    there = stored(store, pins.need_set_key(ready)) or all(stored(store, sha, name) for name, sha in chosen)
    return there and all(stored(store, sha, name) for name, sha in sources)


def _fetch(pack: Pack, lane: str, offline: bool) -> str:
    bundle = "python -m reproducers.bundle install PART..."
    return bundle if offline else f"python -m reproducers.run {pack.id} --lane {lane}, or without network: {bundle}"


def gpu_findings(lane: Lane, gpus: list[dict[str, str]]) -> list[Finding]:
    """GPUs of the lane's compute capability, as the runner matches it, and a torch that can drive them."""
    if not lane.gpus:
        return []
    found = []
    if sum(lane.capability in (None, gpu.get("capability")) for gpu in gpus) < lane.gpus:
        have = ", ".join(f"{g['name']} ({g.get('capability')})" for g in gpus) or "none"
        what = f"{lane.gpus} GPU of compute capability {lane.capability or 'any'}, here: {have}"
        found.append(Finding(what, "run the cuda lane on a host that has it"))
    torch = hostfacts.version("torch")
    if torch and stamp.torch_cuda() is None:
        remedy = f"pip install --force-reinstall torch=={Version(torch).public}"
        found.append(Finding(f"torch {torch} is built without CUDA", remedy))
    return found


def lane_row(pack: Pack, name: str, host: dict[str, Any], checks: list[Check], store: Store | None) -> dict[str, Any]:
    """One pack in one lane: whether it can run and what is missing."""
    row: dict[str, Any] = {"pack": pack.id, "lane": name, "can_run": False, "absent": "", "missing": []}
    if name not in pack.lanes:
        return row | {"absent": pack.no_lane.get(name, "")}  # type: ignore[call-overload]
    lane = pack.lanes[name]  # type: ignore[index]
    found = [Finding(f"{c.name}: {c.found}, wanted {c.wanted}", c.remedy) for c in checks if _bars(c, name, lane)]
    found += [Finding(f"module {m}", "make setup") for m in lane.requires if not hostfacts.installed(m)]
    found += gpu_findings(lane, host["gpus"])
    if store:
        try:
            found += upstream_findings(pack, name, store, host["index"] == "reachable")
        except CannotTestHere as error:
            found.append(Finding(error.what, error.remedy))
    return row | {"can_run": not found, "missing": [f._asdict() for f in found]}


def _bars(check: Check, lane_name: str, lane: Lane) -> bool:
    """A failed check bars its lanes; numpy's only those that run triton."""
    return not check.ok and lane_name in check.lanes and (check.name != "numpy" or "triton" in lane.requires)


def examine(packs: list[Pack], online: bool = False) -> dict[str, Any]:
    """All facts. The driver is asked while the rest is read."""
    with ThreadPoolExecutor(1) as pool:
        host_later = pool.submit(hostfacts.facts)
        try:
            store: Store | None = Store()
        except OSError:
            store = None
        checks = hostfacts.checks(store)
        asked = "not asked (--online asks)"
        if online:
            asked = index.unreachable(packs[0].upstream.distribution) or "reachable"
        host = host_later.result() | {"store": str(store.root) if store else None, "index": asked}
    lanes = [lane_row(pack, lane, host, checks, store) for pack in packs for lane in ("cpu", "cuda")]
    return {"schema_version": 1, "host": host, "checks": [c._asdict() for c in checks], "lanes": lanes}


def exit_code(found: dict[str, Any]) -> Exit:
    """0 when every pack that has a cpu lane can run it here."""
    cpu = [row for row in found["lanes"] if row["lane"] == "cpu" and not row["absent"]]
    return Exit.OK if all(row["can_run"] for row in cpu) else Exit.CANNOT_TEST
