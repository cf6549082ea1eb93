"""Whether a receipt is about the tree that its pin names, and what its verdict may be counted for."""

from __future__ import annotations

from collections.abc import Iterable

from reproducers.base.verdicts import Verdict
from reproducers.record.receipt import Details, Statement
from reproducers.record.schema import Pack


def counts(seen: Details) -> bool:
    """Whether a receipt says something of a tree that upstream names: it could test, and has a pin."""
    return seen.verdict is not Verdict.UNTESTABLE and seen.pin is not None


def mismatch(pack: Pack, body: Statement) -> str:
    """Why a statement is not about the tree that its pin names; "" when it is, or has no pin."""
    seen, tree = body.details, body.tree
    if seen.pin is None:
        return ""
    if tree.annotations is None or not seen.pin.names(tree.annotations, pack.upstream.distribution):
        return f"it was taken on {tree.name}, and its pin is {seen.pin.origin}"
    if (len(seen.at) == 40 or seen.at[:1].isdigit()) and seen.at not in (seen.pin.release, seen.pin.sha):
        return f"it says {seen.at}, and its pin is {seen.pin.origin}"  # any other ``at`` is the name of a pin
    return ""


def artifact(body: Statement) -> str | None:
    """By what a statement's tree is known to be one and the same: its commit, or the file that it was unpacked from.

    None for a tree with patches, and for one of several files of a release where an early receipt does not say which.
    """
    seen, origin = body.details, body.tree.annotations
    if seen.pin is None or origin is None or origin.stacked_on:
        return None
    if origin.kind == "commit":
        return seen.pin.sha
    files = list(seen.pin.artifacts.values())
    return seen.artifact or (files[0] if len(files) == 1 else None)


def digests(bodies: Iterable[Statement]) -> dict[str, str]:
    """{commit or file: content digest of its tree} as statements have it."""
    known = ((artifact(body), body.tree.digest.sha256) for body in bodies)
    return {key: digest for key, digest in known if key}
