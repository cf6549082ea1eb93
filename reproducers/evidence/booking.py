"""Whether a receipt is about the tree that its pin names, and whether its verdict counts."""

from __future__ import annotations

from collections.abc import Iterable

from reproducers.base.verdicts import Verdict
from reproducers.record.receipt import Details, Statement
from reproducers.record.schema import Pack


def counts(details: Details) -> bool:
    """Whether a receipt's verdict is about a tree of upstream: the run could test, and has a pin."""
    return details.verdict is not Verdict.UNTESTABLE and details.pin is not None


def mismatch(pack: Pack, body: Statement) -> str:
    """Why a statement is about another tree than its pin names; "" when it is about this tree or has no pin."""
    details, tree = body.details, body.tree
    if details.pin is None:
        return ""
    if tree.annotations is None or not details.pin.names(tree.annotations.unbuilt, pack.upstream.distribution):
        return f"it was taken on {tree.name}, its pin is {details.pin.origin}"
    if (len(details.at) == 40 or details.at[:1].isdigit()) and details.at not in (details.pin.release, details.pin.sha):
        return f"it states at {details.at}, its pin is {details.pin.origin}"  # any other ``at`` is the name of a pin
    if tree.annotations.built and details.at != details.pin.sha:
        return f"it was taken on {tree.name}, which no pin is"
    return ""


def key(body: Statement) -> str:
    """The manifest's key of the tree that a receipt with a pin is about: its pin's, of a built tree its own."""
    origin, pin = body.tree.annotations, body.details.pin
    assert pin is not None
    return origin.key if origin is not None and origin.built else pin.origin.key


def artifact(body: Statement) -> str | None:
    """The identity of a statement's tree: its commit, or the file that it was unpacked from.

    None for a tree with patches or built here, and where an early receipt does not name its file among several of a
    release.
    """
    details, origin = body.details, body.tree.annotations
    if details.pin is None or origin is None or origin.stacked_on or origin.built:
        return None
    if origin.kind == "commit":
        return details.pin.sha
    files = list(details.pin.artifacts.values())
    return details.artifact or (files[0] if len(files) == 1 else None)


def digests(bodies: Iterable[Statement]) -> dict[str, str]:
    """{commit or file: content digest of its tree}, as the statements say."""
    known = ((artifact(body), body.tree.digest.sha256) for body in bodies)
    return {key: digest for key, digest in known if key}
