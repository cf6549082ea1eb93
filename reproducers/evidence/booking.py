"""Whether a receipt is about the tree that its pin names, and what its verdict may be counted for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reproducers.record.schema import Pack


def counts(seen: dict[str, Any]) -> bool:
    """Whether a receipt says something of a tree that upstream names: it could test, and has a pin."""
    return seen["verdict"] != "UNTESTABLE" and seen["pin"] is not None


def mismatch(pack: Pack, body: dict[str, Any]) -> str:
    """Why a statement is not about the tree that its pin names; "" when it is, or has no pin."""
    seen, tree = body["predicate"]["patchlane"], str(body["subject"][0]["name"])
    if seen["pin"] is None:
        return ""
    release, sha = seen["pin"].get("release"), seen["pin"].get("sha")
    base, *stacked = tree.split(" + ")
    names = (f"{pack.upstream.distribution} {release}", f"git {sha}", f"{pack.upstream.distribution} git {sha}")
    below = [f"{number:02d}" for number in seen["pin"].get("stacked_on", [])]
    if base not in names or [name.split("_")[0] for name in stacked] != below:
        return f"it was taken on {tree}, and its pin is {label(seen['pin'])}"
    at = str(seen["at"])
    if (len(at) == 40 or at[:1].isdigit()) and at not in (release, sha):  # else the name of a pin
        return f"it says {at}, and its pin is {label(seen['pin'])}"
    return ""


def label(pin: dict[str, Any]) -> str:
    """The release or SHA that a receipt's pin names, with the packs that it is stacked on."""
    return str(pin.get("release") or pin["sha"]) + "".join(f" + {number:02d}" for number in pin.get("stacked_on", []))


def artifact(body: dict[str, Any]) -> str | None:
    """By what a statement's tree is known to be one and the same: its commit, or the file that it was unpacked from.

    None for a tree with patches, and for one of several files of a release where an early receipt does not say which.
    """
    seen, tree = body["predicate"]["patchlane"], str(body["subject"][0]["name"])
    if seen["pin"] is None or " + " in tree:
        return None
    if "git " in tree:
        return str(seen["pin"].get("sha"))
    files = list(seen["pin"].get("artifacts", {}).values())
    return seen.get("artifact") or (files[0] if len(files) == 1 else None)


def digests(bodies: Iterable[dict[str, Any]]) -> dict[str, str]:
    """{commit or file: content digest of its tree} as statements have it."""
    known = ((artifact(body), str(body["subject"][0]["digest"]["sha256"])) for body in bodies)
    return {key: digest for key, digest in known if key}
