"""Whether this host can run each pack and lane, what is missing, and the command that gets it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from packaging.version import Version

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers.host import facts
from reproducers.host.facts import Demand, Finding
from reproducers.probe import stamp
from reproducers.record.schema import Lane, Need, Pack, load_needs
from reproducers.upstream import index, pins
from reproducers.upstream.store import Store

CLONE = "git clone"


def stored(store: Store, key: str, filename: str = "") -> bool:
    """Whether the store has the tree ``key`` or the artefact of the tree. Reads no bytes of either."""
    tree = (store.root / "trees" / key).is_dir() and (store.root / "trees" / f"{key}.json").is_file()
    return tree or bool(filename and (store.root / "artifacts" / key / filename).is_file())


class Fetch(NamedTuple):
    """An upstream artefact, or a commit, that the store lacks and a run fetches by itself."""

    what: str
    source: str  # the distribution on the package index, or the URL of the repository
    filename: str  # "" for a commit


def fetches(pack: Pack, lane: str, store: Store) -> list[Fetch]:
    """Everything that a run of the lane at the live pin would fetch; a guard runs its fixed release too."""
    names = ("live", "fixed") if pack.kind == "guard" else ("live",)
    lacking, known = dict[Fetch, None](), load_needs(pack.folder.parent)
    for pin in (pack.pins[name] for name in names):
        if pin.release is not None:
            filename, sha256 = pins.choose(pin.artifacts)
            if not stored(store, sha256, filename):
                label = f"{pack.upstream.distribution} {pin.release}"
                lacking[Fetch(label, pack.upstream.distribution, filename)] = None
        elif pin.sha is not None and not stored(store, pin.sha):
            source = pin.source or f"https://github.com/{pack.upstream.repo}"
            lacking[Fetch(f"commit {pin.sha[:12]} of {pack.upstream.repo}", source, "")] = None
        for name in pin.needs:
            lacking |= dict.fromkeys(_need_fetches(store, pins.on_lane(known[name], lane)))
    return list(lacking)


def _need_fetches(store: Store, needs: list[Need]) -> list[Fetch]:
    """Artefacts of a set that the store lacks; of a set whose tree it has, only the sources of what is built here."""
    ready = [need for need in needs if need.build is None]
    wanted = needs if not stored(store, pins.need_set_key(ready)) else [need for need in needs if need.build]
    chosen = [(need, *pins.need_artifact(need)) for need in wanted]
    return [
        Fetch(f"{need.distribution} {need.release}", need.distribution, name)
        for need, name, sha256 in chosen
        if not stored(store, sha256, name)
    ]


def out_of_reach(pack: Pack, lane: str, wanted: list[Fetch], store: Store, host: dict[str, Any]) -> list[Finding]:
    """The items of ``wanted`` that cannot be fetched: all of them offline, else those whose server does not answer."""
    findings, fault = list[Finding](), host.get("index_fault", "")
    files = [item.what for item in wanted if item.filename]
    if files and (store.offline or fault):
        why = f", and the index does not answer: {fault}" if fault else ""
        what = f"not in the store: {', '.join(files)}{why}"
        findings.append(Finding(what, "python -m reproducers.bundle install PART..."))
    for item in wanted:
        if not item.filename and (store.offline or (host.get("online") and facts.git_fault(item.source))):
            run = f"python -m reproducers.run {pack.id} --lane {lane} --at live --upstream DIR"
            findings.append(Finding(item.what, f"{CLONE} {item.source} DIR && {run}"))
    return findings


def gpu_findings(lane: Lane, gpus: list[dict[str, str]]) -> list[Finding]:
    """What the lane lacks: GPUs of its compute capability, as the runner matches it, or a torch that drives them."""
    if not lane.gpus:
        return []
    findings = []
    if sum(lane.capability in (None, gpu.get("capability")) for gpu in gpus) < lane.gpus:
        have = ", ".join(f"{g['name']} ({g.get('capability')})" for g in gpus) or "none"
        what = f"{lane.gpus} GPU of compute capability {lane.capability or 'any'}, here: {have}"
        findings.append(Finding(what, "run the cuda lane on a host that has it"))
    torch = facts.version("torch")
    if torch and stamp.torch_cuda() is None:
        remedy = f"pip install --force-reinstall torch=={Version(torch).public}"
        findings.append(Finding(f"torch {torch} is built without CUDA", remedy))
    return findings


def lane_row(pack: Pack, name: str, host: dict[str, Any], checks: list[Demand], store: Store | None) -> dict[str, Any]:
    """One pack in one lane: whether it can run and what is missing."""
    row: dict[str, Any] = {"pack": pack.id, "lane": name, "can_run": False, "absent": "", "fetches": [], "missing": []}
    if name not in pack.lanes:
        return row | {"absent": pack.no_lane.get(name, "")}  # type: ignore[call-overload]
    lane = pack.lanes[name]  # type: ignore[index]
    findings = [Finding(f"{c.name}: {c.found}, wanted {c.wanted}", c.remedy) for c in checks if _bars(c, name, lane)]
    absent = [module for module in lane.requires if not facts.installed(module)]
    findings += [Finding(f"module {module}", facts.getting(module)) for module in absent]
    findings += gpu_findings(lane, host["gpus"])
    wanted = list[Fetch]()
    if store:
        try:
            wanted = fetches(pack, name, store)
            findings += out_of_reach(pack, name, wanted, store, host)
        except CannotTestHere as error:
            findings.append(Finding(error.what, error.remedy))
    rows = [item._asdict() for item in wanted] if not findings else []
    return row | {"can_run": not findings, "fetches": rows, "missing": [f._asdict() for f in findings]}


def _bars(check: Demand, lane_name: str, lane: Lane) -> bool:
    """Whether the check fails and bars the lane; numpy's bars only lanes that run triton."""
    return not check.ok and lane_name in check.lanes and (check.name != "numpy" or "triton" in lane.requires)


def examine(packs: list[Pack], online: bool = False) -> dict[str, Any]:
    """The doctor's whole report, as its JSON has it. Asks the driver while it reads the rest."""
    with ThreadPoolExecutor(1) as pool:
        host_later = pool.submit(facts.facts)
        try:
            store: Store | None = Store()
        except PatchlaneError:
            store = None
        checks = facts.checks(store)
        fault = index.unreachable(next((pack.upstream.distribution for pack in packs), "pip")) if online else ""
        asked = (fault or "reachable") if online else "not asked (--online asks)"
        host = host_later.result() | {"store": str(store.root) if store else None, "index": asked}
    reach = host | {"index_fault": fault, "online": online}
    lanes = [lane_row(pack, lane, reach, checks, store) for pack in packs for lane in ("cpu", "cuda")]
    _share(lanes)
    sizes = {}
    if asked == "reachable":
        files = {(row["source"], row["filename"]) for lane in lanes for row in lane["fetches"] if row["filename"]}
        sizes = index.sizes(files)
    return {
        "schema_version": 1,
        "host": host,
        "checks": [c._asdict() for c in checks],
        "lanes": lanes,
        "sizes": {name: sizes[name] for name in sorted(sizes)},
    }


def _share(lanes: list[dict[str, Any]]) -> None:
    """Name one command for each commit that no clone has brought: the tree that it leaves serves every lane."""
    first: dict[str, str] = {}
    for item in (item for row in lanes for item in row["missing"] if item["remedy"].startswith(CLONE)):
        item["remedy"] = first.setdefault(item["what"], item["remedy"])


def exit_code(report: dict[str, Any]) -> Exit:
    """OK if every pack that has a cpu lane can run it here, else CANNOT_TEST."""
    cpu = [row for row in report["lanes"] if row["lane"] == "cpu" and not row["absent"]]
    return Exit.OK if all(row["can_run"] for row in cpu) else Exit.CANNOT_TEST
