"""Nothing private of the machine where a pack was made leaves with it.

The patterns are our own: detect-secrets imports an HTTP client, which nothing that prepares a filing may do.
"""

from __future__ import annotations

import dataclasses
import functools
import getpass
import math
import platform
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import RULES, Breach, Skip, rule
from reproducers.desk.start import mutants
from reproducers.evidence.receipts import newest_of
from reproducers.record.schema import text_of

PATHS = re.compile(
    r"(?:(?<![\w.<>/~-])|(?<=file://))(?:/(?:home|root|work|tmp|Users|mnt|scratch|nfs|workspace|data)/[\w.@-][\w./@-]*"
    r"|[A-Z]:\\\w+)"
)
EMAIL = re.compile(
    r"(?<![\w.+-])\w[\w.+-]*@(?!example\.(?:org|com)\b|(?:[\w-]+\.)+invalid\b)[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)*\.[a-zA-Z]{2,}\b"
)
HOST = re.compile(
    r"(?<![\w.@])(?:[a-z0-9-]+\.)+(?:internal|intranet|corp|lan)\b(?![.(\w])"
    r"|\bhttps?://(?!localhost\b)[\w-]+(?=[:/\s])|\b(?:[\w-]+\.)+cluster\.local\b"
    r"|(?<![\d.])(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?!\.?\d)"
    r"|(?<=://)(?!127\.)\d{1,3}(?:\.\d{1,3}){3}\b"
)
TOKEN = re.compile(
    r"\b(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}"
    r"|glpat-[\w-]{20}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{20,})|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
ASSIGNED = re.compile(r"(?i)\b\w*(?:secret|passw(?:or)?d|api_?key|token|credential)\s*[=:]\s*[\"']?([\w+/=-]{16,})")
CODE = re.compile(
    r"\brefs/(?:heads|remotes)/\S+|\borigin/[\w./-]+|\b(?!(?:SHA|ISO|RFC|CVE|PEP|BSD|UTF)-)[A-Z]{2,6}-\d{3,6}\b"
)
# {pattern: a part of whatever it finds}; the part is found in a tenth of the time, and most logs have none
PARTS = {
    PATHS: re.compile(r"/(?:home|root|work|tmp|Users|mnt|scratch|nfs|workspace|data)/|[A-Z]:\\"),
    EMAIL: re.compile("@"),
    HOST: re.compile(r"\.(?:internal|intranet|corp|lan)\b|https?://|\.cluster\.local|10\.\d|192\.168|172\.[123]|://\d"),
}
COMMON = {
    "root",
    "user",
    "users",
    "runner",
    "ubuntu",
    "admin",
    "nobody",
    "localhost",
    "build",
    "docker",
    "test",
    "main",
}
SECRET_BITS = 3.5  # of entropy a character; words and names have less


def _texts(case: Case) -> Iterator[tuple[Path, str]]:
    """(file, text) of everything that leaves with a pack. The template's path goes with the rendered texts, the
    reproducer's with the exported file."""
    for text in case.texts.values():
        yield case.body, text.markdown
    notes = case.pack.folder / "notes.md"
    filed = newest_of(case.pack, case.receipts, case.pack.filing_pin)
    receipts = dict.fromkeys([*case.newest.values(), *filed.values()])
    logs = [receipt.with_suffix(".log") for receipt in receipts]
    for path in [case.record, *dict.fromkeys(case.patches.values()), *mutants.paths(case.pack), notes, *logs]:
        if path.is_file():
            yield path, text_of(path)
    yield case.pack.reproducer, _exported(case)


def _exported(case: Case) -> str:
    """The single file, or the reproducer alone where it cannot be exported yet."""
    from reproducers.desk.attachment.export import render

    source = text_of(case.pack.reproducer)
    try:
        return render(case.pack)
    except PatchlaneError:
        return source


@functools.lru_cache(maxsize=2048)
def _matches(pattern: re.Pattern[str], text: str) -> tuple[re.Match[str], ...]:
    """All matches. Text that packs share, as the probe in every exported file, is searched once."""
    if pattern in PARTS and not PARTS[pattern].search(text):
        return ()
    return tuple(pattern.finditer(text))


def _scan(case: Case, pattern: re.Pattern[str], what: str, remedy: str, shown: int = 24) -> Iterator[Breach]:
    for path, text, match in _finds(case, pattern):
        where = (path, text.count("\n", 0, match.start()) + 1)
        if path == case.body:
            where = case.locate(match[0])
        elif path == case.pack.reproducer:  # the text is the exported file's
            where = (path, _line(path, match[0]))
        yield Breach(*where, f"{what}: {_hidden(match[0], shown)!r}", remedy)


def _finds(case: Case, pattern: re.Pattern[str]) -> Iterator[tuple[Path, str, re.Match[str]]]:
    if "texts" not in case.cache:
        case.cache["texts"] = list(_texts(case))
    for path, text in case.cache["texts"]:
        for match in _matches(pattern, text):
            yield path, text, match


def _line(path: Path, snippet: str) -> int:
    text = text_of(path)
    return text[: text.index(snippet)].count("\n") + 1 if snippet in text else 1


def _hidden(match: str, shown: int) -> str:
    """A match as a log may show it: whole up to ``shown`` characters, else only its beginning."""
    return match if len(match) <= shown else match[: min(shown, 12)] + "…"


@rule("private-path", "no path of the machine where the pack was made")
def paths(case: Case) -> Iterator[Breach | Skip]:
    yield from _scan(case, PATHS, "a path of a machine", "name the folder's role, as DIR or <store>")


@rule("private-email", "no e-mail address")
def emails(case: Case) -> Iterator[Breach | Skip]:
    for breach in _scan(case, EMAIL, "an e-mail address", "leave it out"):
        if "git@github.com" not in breach.what:
            yield breach


@rule("private-host", "no private host or address")
def hosts(case: Case) -> Iterator[Breach | Skip]:
    yield from _scan(case, HOST, "a private host", "name the hardware instead")


@rule("private-name", "no user or host name of this machine")
def names(case: Case) -> Iterator[Breach | Skip]:
    own = {name.lower() for name in _own_names()} - COMMON
    if own:
        pattern = re.compile(rf"(?i)(?<![\w.-])(?:{'|'.join(map(re.escape, sorted(own)))})(?![\w-])")
        yield from _scan(case, pattern, "a name of this machine", "leave it out")


def _own_names() -> list[str]:
    """This machine's user and host names that are long enough not to be common words."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = ""
    return [name for name in (user, platform.node()) if len(name) >= 4]


@rule("private-token", "no token, key or password")
def tokens(case: Case) -> Iterator[Breach | Skip]:
    remedy = "revoke it, then leave it out"
    yield from _scan(case, TOKEN, "a token", remedy, shown=8)
    for path, text, match in _finds(case, ASSIGNED):
        if _entropy(match[1]) > SECRET_BITS and re.search(r"\d", match[1]):
            line = text.count("\n", 0, match.start()) + 1
            where = (path, line) if path not in (case.body, case.pack.reproducer) else (path, _line(path, match[0]))
            yield Breach(*where, f"a secret: {_hidden(match[0], 8)!r}", remedy)


def _entropy(text: str) -> float:
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


@rule("private-code", "no name of a branch or of an internal ticket")
def codes(case: Case) -> Iterator[Breach | Skip]:
    titles = " ".join(thread.title for thread in case.pack.upstream_state.threads)  # public, as they are there
    for breach in _scan(case, CODE, "a branch or ticket of ours", "say what it is about, or cite a public thread"):
        if breach.what.rpartition(": ")[2].strip("'") not in titles:
            yield breach


def over(case: Case, texts: list[tuple[Path, str]]) -> Iterator[tuple[str, Breach]]:
    """(rule, breach) of every private rule over these (file, text) instead of the pack's own."""
    given = dataclasses.replace(case, cache={"texts": texts})
    for name in [name for name in RULES if name.startswith("private-")]:
        for result in RULES[name].check(given):
            if isinstance(result, Breach):
                yield name, result
