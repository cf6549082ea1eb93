"""A reproducer and the parts of the probe that it uses, as the text of one file.

Header (PEP 723), docstring, how to run it, ``minimal()``, the reproducer's code, then the probe as plain code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from patchlane.base.errors import PatchlaneError
from reproducers.desk.attachment import flatten
from reproducers.probe.api import SOURCES
from reproducers.record.schema import Pack, parsed, text_of
from reproducers.upstream import pins

ISSUE_LIMIT = 65_536  # characters that GitHub takes in one issue or comment
UNPINNED = {"tilelang": "apache-tvm-ffi"}  # pip takes the newest, which older releases cannot load
LISTED = re.compile(r"((?<=\")([A-Za-z][\w.-]*)(?:\[[^\]]*\])?)(?:==([\w.+!]+))?(?=\")")  # of a list in TOML
HEADER = re.compile(r"(?m)^# /// script$\s(^#(| .*)$\s)+^# ///$\n")  # PEP 723's own pattern, for one type


def split(source: str) -> tuple[str, str, str]:
    """(PEP 723 header, docstring, ``__future__`` imports) of a reproducer, as they stand in its text.

    Raises PatchlaneError if it lacks header or docstring.
    """
    header = HEADER.match(source)
    if header is None:
        raise PatchlaneError("the reproducer does not begin with a PEP 723 header", "docs/writing-a-pack.md")
    body = parsed(source).body
    if not (body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)):
        raise PatchlaneError("the reproducer has no docstring", "state the claim in one")
    lines = source.splitlines(keepends=True)
    first, last = header[0].count("\n"), body[0].end_lineno or 0
    future = [n.end_lineno or 0 for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    return header[0], "".join(lines[first:last]), "".join(lines[last : max([last, *future])])


def note(pack: Pack) -> str:
    """How to run the file, as comments."""
    package, root = pack.upstream.package, pack.upstream.source_root
    run, lane = f"python {pack.id}.py", "" if "cpu" in pack.lanes else " --lane cuda"
    need = [n.distribution.replace("-", "_") for n in pins.needs_of(pack, pack.pins["live"])]
    folders = [f"{SOURCES[name]}, then {option} DIR" for name, option in _folders(package, need)]
    rows = [
        f"uv run {pack.id}.py{lane}, or, where the packages above are installed, {run}{lane}",
        *(f"  first: {folder}" for folder in folders),
        *([f"  {run} --lane cuda     on a GPU"] if not lane and "cuda" in pack.lanes else []),
        f"  {run} --tree DIR      tests DIR's {package}: an unpacked release or {_checkout(root)}",
        f"  {run} --minimal       runs minimal() alone",
        f"It ends with BUG_REPRODUCED where the bug is, as in {pack.upstream.distribution} {pack.pins['live'].origin},",
        "with HEALTHY where it is not (exit status 0 for both), and with CANNOT_TEST where this host cannot tell (77).",
    ]
    return "".join(f"# {row}\n" for row in rows)


def _folders(package: str, needs: list[str]) -> Iterator[tuple[str, str]]:
    """(package, option for its folder) of each package that pip may fail to install."""
    if package in SOURCES:
        yield package, "--tree"
    yield from ((name, "--needs") for name in needs if name in SOURCES)


def _checkout(root: str) -> str:
    return "a checkout" if root == "." else f"a checkout's {root}/"


def completed(header: str, pack: Pack) -> str:
    """The header as whoever gets the file needs it.

    What is under test has the release of the live pin, and so have its needs where the header asks for one, and what a
    listed distribution loads without pinning it. Any other exact version would bring back the torch of that day. Python
    is what upstream asks for.
    """
    live, upstream = pack.pins["live"], pack.upstream
    needs = pins.needs_of(pack, live)
    pinned = {_same(need.distribution): need.release for need in needs}

    def listed(match: re.Match[str]) -> str:
        name = _same(match[2])
        if name == _same(upstream.distribution) and live.release:
            return f"{match[1]}=={live.release}"
        if match[3] is None:
            return match[0]
        return f"{match[1]}=={pinned[name]}" if name in pinned else f"{match[1]}>={match[3]}"

    header = LISTED.sub(listed, header)
    if upstream.python:
        header = re.sub(r'(?m)^# requires-python = ".*"$', f'# requires-python = "{upstream.python}"', header)
    releases = {need.distribution: need.release for need in needs}
    for name, loaded in UNPINNED.items():
        if loaded in releases and f'"{loaded}' not in header:
            header = re.sub(rf'(?m)^#     .*"{name}==.*\n', rf'\g<0>#     "{loaded}=={releases[loaded]}",\n', header)
    return header


def _same(distribution: str) -> str:
    """The name as an index compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def render(pack: Pack) -> str:
    """The exported file's text; a pure function of the pack's and the engine's files."""
    source = text_of(pack.reproducer)
    header, docstring, future = split(source)
    header = completed(header, pack)
    imports, code = flatten.join(source, pack.reproducer.name, pack.lanes)
    return "\n".join([f"{header}{docstring}{note(pack)}", *([future.lstrip()] if future else []), imports, code])
