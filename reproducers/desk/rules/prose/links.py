"""Every link of a text is public, and shows tomorrow what it shows today."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule

# Hosts whose pages anybody can read and whose addresses name a version; add one only with both.
HOSTS = {"github.com", "pypi.org", "arxiv.org", "doi.org"}
BLOB = re.compile(r"^/([\w.-]+/[\w.-]+)/(?:blob|tree|blame|raw|commit)/([^/#?]+)")
DIFF = re.compile(r"^/[\w.-]+/[\w.-]+/(pull/\d+/(files|commits|changes)|compare/|(pull|commit)/\w+\.(diff|patch)$)")
THREAD = re.compile(r"^/([\w.-]+/[\w.-]+)/(?:issues|pull|discussions)/(\d+)")
REFERENCE = re.compile(r"(?<![\w/&`])([\w.-]+/[\w.-]+)?#(\d{1,6})\b")
FULL, HEX = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{7,39}")
SHORT = re.compile(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,39}\b")
SHA_MEND = "write the full SHA of 40 characters (git rev-parse)"


def _links(case: Case) -> Iterator[tuple[str, str]]:
    """(link, its path) of every link to GitHub."""
    for link in dict.fromkeys(link for text in case.texts.values() for link in text.links):
        if urlsplit(link).hostname == "github.com":
            yield link, urlsplit(link).path


@rule("link-public", "every link is https, to a host that anybody can read")
def public(case: Case) -> Iterator[Breach | Skip]:
    for link in dict.fromkeys(link for text in case.texts.values() for link in text.links):
        parts = urlsplit(link)
        if parts.scheme == "mailto":
            continue  # private-email refuses it
        if parts.scheme != "https" or parts.hostname not in HOSTS:
            known = ", ".join(sorted(HOSTS))
            yield Breach(*case.locate(link), f"{link} is not an https link to one of {known}", "cite a public page")


@rule("link-immutable", "a file or a release is cited at a full SHA or version, not at a branch or tag")
def immutable(case: Case) -> Iterator[Breach | Skip]:
    for link, path in _links(case):
        blob = BLOB.match(path)
        if blob and not FULL.fullmatch(blob[2]) and not HEX.fullmatch(blob[2]):
            yield Breach(*case.locate(link), f"{link} follows {blob[2]!r}, which moves", SHA_MEND)
    for link in dict.fromkeys(link for text in case.texts.values() for link in text.links):
        if re.fullmatch(r"https://pypi\.org/project/[^/]+/?", link):
            yield Breach(*case.locate(link), f"{link} shows the newest release", "add the version")


@rule("link-diff", "no link to the changes of a pull request or to a comparison, which move")
def diff(case: Case) -> Iterator[Breach | Skip]:
    for link, path in _links(case):
        if DIFF.match(path):
            yield Breach(*case.locate(link), f"{link} shows a diff that moves", "link the thread, or the merged commit")


@rule("link-short-sha", "no shortened SHA, but as the text of a link")
def short_sha(case: Case) -> Iterator[Breach | Skip]:
    for link, path in _links(case):
        blob = BLOB.match(path)
        if blob and HEX.fullmatch(blob[2]):
            yield Breach(*case.locate(link), f"{link} has the short SHA {blob[2]}", SHA_MEND)
    for text in case.texts.values():
        for sha in SHORT.findall(re.sub(r"\[[^\]]*\]\([^)\s]*\)|https?://\S+", " ", text.prose)):
            yield Breach(*case.locate(sha), f"{sha} is a short SHA", SHA_MEND)


@rule(
    "link-known",
    "every commit and thread that is linked is a pin or a thread of the pack's record, or was tried by a receipt",
)
def known(case: Case) -> Iterator[Breach | Skip]:
    remedy = f"look it up and record it in {case.pack.folder.name}/pack.yaml, upstream_state.threads"
    pinned = {pin.sha for pin in case.pack.pins.values()}
    for link, path in _links(case):
        blob, thread = BLOB.match(path), THREAD.match(path)
        if DIFF.match(path):
            continue
        named = blob and (blob[2] in pinned or blob[2] in case.record_text or blob[2] in case.entry.tried)
        if blob and FULL.fullmatch(blob[2]) and not (_concerns(case, blob[1]) and named):
            yield Breach(*case.locate(link), f"{link}: the pack's record does not name {blob[2]}", remedy)
        if thread and not any(f"/{thread[1]}/".lower() in t.lower() for t in _threads(case, thread[2])):
            yield Breach(*case.locate(link), f"{link} is no thread of the pack's record", remedy)


def _concerns(case: Case, repo: str) -> bool:
    """Whether the repository is the pack's upstream, or a thread of the pack is in it."""
    urls = [f"https://github.com/{case.pack.upstream.repo}/", *(t.url for t in case.pack.upstream_state.threads)]
    return any(f"github.com/{repo}/".lower() in url.lower() for url in urls)


def _threads(case: Case, number: str) -> list[str]:
    return [t.url for t in case.pack.upstream_state.threads if t.url.rsplit("/", 1)[1] == number]


@rule("link-reference", "#N means a thread of the pack's own upstream, and one that the record names")
def reference(case: Case) -> Iterator[Breach | Skip]:
    state = case.pack.upstream_state
    named = {m for t in state.threads for m in re.findall(r"#(\d+)", f"{t.title} {t.note}")}
    named |= {t.url.rsplit("/", 1)[1] for t in state.threads if f"/{case.pack.upstream.repo}/" in t.url}
    remedy = f"name it in a thread or its note in {case.pack.folder.name}/pack.yaml, or link it in full"
    for text in case.texts.values():
        prose = re.sub(r"\]\([^)\s]*\)|https?://\S+", " ", text.prose)
        for repo, number in dict.fromkeys(REFERENCE.findall(prose)):
            if (repo and repo != case.pack.upstream.repo) or number not in named:
                what = f"{repo}#{number} is no thread of {case.pack.upstream.repo} that the record names"
                yield Breach(*case.locate(f"#{number}"), what, remedy)
