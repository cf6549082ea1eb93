"""Packs as records of the Open Source Vulnerability format, https://ossf.github.io/osv-schema/ (1.7.5).

A record says what receipts say: ``versions`` are releases that were run and have the bug, and a range of releases
stands only where a measured one ends it. There is no severity, for a pack is no security advisory.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from patchlane.base.files import file_sha256
from reproducers.desk.page.standings import Told
from reproducers.record.schema import Releases, Thread

SCHEMA = "1.7.5"
PREFIX = "x_patchlane-"  # the schema keeps x_ for databases that it does not list
ECOSYSTEM = "PyPI"
SHA = re.compile(r"\b[0-9a-f]{40}\b")
SCANNERS = ("osv-scanner", "osv-scalibr")  # where osv-scanner looks in its local database, by its version
EPOCH = (1980, 1, 1, 0, 0, 0)  # of a zip's members, so that the same records give the same bytes
Record = dict[str, Any]


def records(packs: list[Told], releases: Releases, site: str = "") -> list[Record]:
    """A record for each pack that names a bug and has a receipt.

    ``site``: the address of the report page. Without one receipts and patches are named by digest (RFC 6920).
    """
    return [_record(one, releases, site.rstrip("/")) for one in packs if one.pack.names_bug and one.changed]


def files(found: list[Record]) -> dict[str, bytes]:
    """{path: content}: a file a record, and all of them as the archive that ``osv-scanner`` reads offline."""
    texts = {f"{one['id']}.json": (json.dumps(one, indent=2, sort_keys=True) + "\n").encode() for one in found}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text)
    return texts | dict.fromkeys((f"{folder}/{ECOSYSTEM}/all.zip" for folder in SCANNERS), packed.getvalue())


def _record(told: Told, releases: Releases, site: str) -> Record:
    pack = told.pack
    distribution, known = pack.upstream.distribution, releases.get(pack.upstream.distribution, {})
    shas = {name: release.sha for name, release in known.items() if release.sha}
    return {
        "schema_version": SCHEMA,
        "id": f"{PREFIX}{pack.number:02d}",
        "modified": told.changed,
        "published": told.shown or told.changed,
        "summary": pack.title,
        "details": f"{pack.claim}\n\n{pack.effect}.",
        "affected": [
            {
                "package": {"ecosystem": ECOSYSTEM, "name": distribution, "purl": f"pkg:pypi/{distribution}"},
                "versions": [name for name, word in told.answers.items() if word == "bug"],
                "ranges": [*_by_release(told), *_by_commit(told, shas)],
            }
        ],
        "references": list(_references(told, site)),
        "database_specific": {
            "harm": pack.harm,
            "effect": pack.effect,
            "kind": pack.kind,
            "state": told.entry.state,
            "lanes": {name: lane.verdict.value for name, lane in told.entry.lanes.items()},
            "measured": told.answers,
        },
    }


def _by_release(told: Told) -> Iterator[Record]:
    """A range for each row of measured releases with the bug that ends in a release without it."""
    rows = [(word, list(group)) for word, group in itertools.groupby(told.answers.items(), key=lambda item: item[1])]
    for (word, with_bug), (after, without) in itertools.pairwise(rows):
        if (word, after) == ("bug", "fixed"):
            events = [{"introduced": with_bug[0][0]}, {"fixed": without[0][0]}]
            yield {"type": "ECOSYSTEM", "events": events}


def _by_commit(told: Told, shas: dict[str, str]) -> Iterator[Record]:
    """One range: from the commit that brought the bug, or the oldest with it, to those without it or the last with it.

    ``shas``: {release: the commit that it was cut from}.
    """
    at = {shas[name]: word for name, word in told.answers.items() if name in shas} | told.commits
    buggy = [sha for sha, word in at.items() if word == "bug"]
    if not buggy:
        return
    brought = [sha for one in told.pack.upstream_state.threads if (sha := _brought(one))]
    last = next((sha for sha, word in at.items() if word == "fixed"), None)
    ends = [*([last] if last else []), *(sha for sha, word in told.commits.items() if word == "healthy")]
    closing = [{"fixed": sha} for sha in ends] or [{"last_affected": sha} for sha in buggy]
    events = [{"introduced": (brought or buggy)[0]}, *closing]
    yield {"type": "GIT", "repo": f"https://github.com/{told.pack.upstream.repo}", "events": events}


def _brought(thread: Thread) -> str | None:
    """The commit of a thread that introduced the bug: in its address, else the first one that its note names."""
    if thread.relation != "introduced it":
        return None
    found = SHA.search(thread.url) or SHA.search(thread.note)
    return found[0] if found else None


def _references(told: Told, site: str) -> Iterator[dict[str, str]]:
    pack, kinds = told.pack, {"fixes it": "FIX", "reports it": "REPORT", "introduced it": "INTRODUCED"}
    yield {"type": "PACKAGE", "url": f"https://github.com/{pack.upstream.repo}"}
    for thread in pack.upstream_state.threads:
        if thread.relation in kinds and not (thread.relation == "fixes it" and thread.state != "merged"):
            yield {"type": kinds[thread.relation], "url": thread.url}
    if pack.upstream_state.filed_url:
        yield {"type": "REPORT", "url": pack.upstream_state.filed_url}
    if pack.patch.is_file():
        yield {
            "type": "FIX",
            "url": _address(site, f"packs/{pack.number:02d}/{pack.id}-fix.patch", file_sha256(pack.patch)),
        }
    for lane in told.entry.lanes.values():
        yield {"type": "EVIDENCE", "url": _address(site, f"receipts/{lane.receipt}", lane.receipt_sha256)}


def _address(site: str, path: str, sha256: str) -> str:
    if site:
        return f"{site}/{path}"
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
    return f"ni:///sha-256;{digest}?file={path}"
