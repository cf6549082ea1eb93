"""Values of an exported patch's header that have parts, each made from a pack's record."""

from __future__ import annotations

import re

from reproducers.record.schema import Pack, Pin

URL = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull|commit)/\w+(?:#\S+)?")
# Who may have written a patch: we, the upstream, or another project, whose licence then stands in brackets.
OURS = re.compile(r"\bpatchlane\b")
UPSTREAM = re.compile(r"upstream[,:]? (?:https://\S+/commit/)?([0-9a-f]{40})(?:[ ,].*)?")
OTHER = re.compile(
    r"(?:[\w.-]+/[\w.-]+@[0-9a-f]{40}|https://\S*\b[0-9a-f]{40}\b\S*)(?: .*)? \([\w.+-]+(?: [\w.+-]+)*\)"
)
ORIGINS = (
    '"written for patchlane", "upstream, SHA", or "OWNER/NAME@SHA (LICENCE)" or "URL (LICENCE)" of another project,'
    " each SHA in full"
)


def target(pack: Pack, pin: Pin) -> str:
    """Applies-To: the release with its full SHA, or with an artefact's digest where no SHA is known; or a SHA alone."""
    known = pin.sha or f"sha256:{min(pin.artifacts.items())[1]}"
    after = ", ".join(f"{number:02d}" for number in pin.stacked_on)
    packs = f" after pack{'s' if len(pin.stacked_on) > 1 else ''} {after}" if after else ""
    return f"{pack.upstream.distribution} {pin.release or 'git'} ({known}){packs}"


def origin_fault(origin: str) -> str:
    """Why a text is no Origin, "" if it is one: who wrote a patch, and where it may be compared.

    It names patchlane, upstream with the full SHA of its commit, or another project's file at a full SHA, as
    OWNER/NAME@SHA or as a URL that has it, with the licence under which it is carried in brackets at the end.
    """
    if OURS.search(origin) or UPSTREAM.fullmatch(origin) or OTHER.fullmatch(origin):
        return ""
    return f"no Origin: {origin}"


def upstream_commit(origin: str) -> str | None:
    """The full SHA of upstream's commit that a patch is, None for a patch that is not upstream's own."""
    match = UPSTREAM.fullmatch(origin)
    return match[1] if match else None


def status(pack: Pack, origin: str = "") -> str:
    """Upstream-Status in Yocto's words, always with a URL or a reason."""
    if commit := upstream_commit(origin):
        return f"Backport [https://github.com/{pack.upstream.repo}/commit/{commit}]"
    state, filing = pack.upstream_state, pack.filing
    reason = " ".join(filing.reason.split())
    if state.filed_url:
        return f"Submitted [{state.filed_url} on {state.filed_on}]"
    if merged := [t.url for t in state.threads if t.relation == "fixes it" and t.state == "merged"]:
        # Backport would say that the patch is upstream's own change; a pack's patch is written for it
        return f"Inappropriate [fixed upstream by another change: {', '.join(merged)}]"
    if filing.decision in ("hold", "none"):
        return f"Inappropriate [{'held' if filing.decision == 'hold' else 'not filed'}: {reason}]"
    if filing.decision == "comment":
        return f"Pending [{f'offered on {filing.thread}' if filing.thread else f'a comment: {reason}'}]"
    return f"Pending [to be filed as {filing.decision}: {reason}]"


def bug(pack: Pack) -> str:
    """Bug: the thread of the pack's own upstream that reports it, else the thread where the pack comments."""
    reports = [thread.url for thread in pack.upstream_state.threads if thread.relation == "reports it"]
    return next((url for url in reports if pack.owns(url)), pack.filing.thread or "none known")
