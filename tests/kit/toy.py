"""A toy upstream package with two bugs, a pack for it, a thread, and the patches that tests try on it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import hashlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reproducers.record.origin import Origin
from reproducers.record.schema import RELEASES, ROOT, Pack, load_needs, load_pack, load_releases
from reproducers.trial.experiment import Request, Run, execute
from reproducers.upstream.store import Store, tree_digest

CORE = '''"""Sums."""


def total(values):
    """The sum."""
    result = 0.0
    for value in values[1:]:
        result += value
    return result


def mean(values):
    """The mean."""
    if not values:
        return 0.0
    return sum(values) / len(values)


def scale(values, factor):
    """Each value times the factor."""
    return [value * factor for value in values]


def unused(values):
    """Nobody calls this."""
    count = len(values)
    return count + 1


def filler(values):
    """Keeps the functions around it in hunks of their own."""
    low = min(values)
    high = max(values)
    return low, high


def first(values):
    """The first value, None when there is none."""
    if not values:
        raise ValueError("empty is not supported")
    return values[0]
'''
SOURCE = {"toyup/__init__.py": "", "toyup/core.py": CORE}
TOTAL = ("values[1:]:", "values:")
FIRST = ('raise ValueError("empty is not supported")', "return None")
SUM = "        result += value\n    return result\n"
DEAD = "        result += value\n    if len(values) > 1000:\n        result = -1.0\n    return result\n"
UNREACHED = "    memory_gib: 2\n    unreached: [{{line: {line}, reason: a toy has no long lists}}]\n"

REPRODUCER = '''"""Toy claim: total() forgets the first value and first() refuses an empty list."""

from reproducers import probe


def minimal():
    from toyup.core import total

    assert total([1, 2, 3]) == 6


def reproduce(p):
    core = p.upstream("toyup.core")
    p.error("total", abs(core.total([1, 2, 3]) - 6), 1e-9, reference="6", bug_above=0.5)
    p.attempt("first", lambda: core.first([]), probe.Signature("ValueError", "^empty is not", "toyup/core.py"))
    p.guard("total of a zero and a two", abs(core.total([0, 2]) - 2), 1e-9, reference="2")
    p.guard("mean", abs(core.mean([1, 2, 3]) - 2), 1e-9, reference="2")


if __name__ == "__main__":
    probe.main(reproduce, pack=7, package="toyup", minimal=minimal)
'''

RECORD = """schema_version: 1
number: 7
title: total forgets the first value
claim: total and first are wrong.
category: memory
kind: bug
harm: wrong numbers
effect: Every total lacks its first value
upstream:
  repo: toy/toyup
  distribution: toyup
  package: toyup
  licence: Apache-2.0
pins:
  live:
    release: "1.0"
lanes:
  cpu:
    timeout_s: 30
    memory_gib: 2
no_lane:
  cuda: a toy
upstream_state:
  search:
    found: none
    query: toy
    date: 2026-11-21
filing:
  decision: none
  reason: a toy
remove_when: never
review_by: 2027-11-21
"""
PUBLISHED = """toyup:
  "1.0":
    sha: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    artifacts:
      toyup-1.0-py3-none-any.whl: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
"""
THREAD = {
    "url": "https://github.com/toy/toyup/issues/3",
    "title": "total is wrong",
    "relation": "reports it",
    "state": "open",
    "looked_up": "2026-11-21",
}


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write ``{relative path: text}`` under ``root``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def listing(line: str) -> str:
    """The toy's record with a line that its lane cannot run."""
    return RECORD.replace("    memory_gib: 2\n", UNREACHED.format(line=line))


def overwrite(path: Path, text: str) -> None:
    """Write over a file of the store, which nobody but root may."""
    path.chmod(0o644)
    path.write_text(text)


def edited(*changes: tuple[str, str], core: str = CORE) -> dict[str, str]:
    """The toy's sources with each (old, new) replaced once."""
    for old, new in changes:
        assert core.count(old) == 1, old
        core = core.replace(old, new)
    return {**SOURCE, "toyup/core.py": core}


def git(*args: str, cwd: Path) -> str:
    """Run git as a fixed author; returns its output."""
    identity = ["-c", "user.name=toy", "-c", "user.email=toy@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *args], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout


def diff(scratch: Path, old: dict[str, str], new: dict[str, str], *flags: str) -> str:
    """``git diff`` between two trees, renames included."""
    repo = scratch / "diff"
    subprocess.run(["rm", "-rf", str(repo)], check=True)
    repo.mkdir(parents=True)
    git("init", "-q", cwd=repo)
    write_tree(repo, old)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "old", cwd=repo)
    for name in old:
        (repo / name).unlink()
    write_tree(repo, new)
    git("add", "-A", cwd=repo)
    return git("diff", "--cached", "-M", *flags, cwd=repo)


def wheel(folder: Path, files: dict[str, str] = SOURCE, release: str = "1.0") -> Path:
    """A wheel of the toy in ``folder``, the same bytes every time."""
    info = f"toyup-{release}.dist-info"
    files = files | {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: toyup\nVersion: {release}\n"}
    files |= {f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", f"{info}/RECORD": ""}
    path = folder / f"toyup-{release}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as sink:
        for name, text in files.items():
            sink.writestr(zipfile.ZipInfo(name), text)
    return path


@contextlib.contextmanager
def package_index(folder: Path) -> Iterator[str]:
    """The address of a package index with the toy's wheels in ``folder``, for PIP_INDEX_URL."""
    rows = [
        f'<a href="/{p.name}#sha256={hashlib.sha256(p.read_bytes()).hexdigest()}">{p.name}</a>\n'
        for p in folder.glob("*.whl")
    ]
    write_tree(folder, {"simple/toyup/index.html": f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>"})

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *said: object) -> None:
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()


def body(code: str) -> str:
    """A reproducer whose ``reproduce`` has this body."""
    head = "import ctypes, os, signal, subprocess, sys, time\nfrom reproducers import probe\n\n\ndef reproduce(p):\n"
    tail = '\n\nif __name__ == "__main__":\n    probe.main(reproduce, pack=7, package="toyup", minimal=lambda: None)\n'
    return head + textwrap.indent(textwrap.dedent(code).strip(), "    ") + tail


def named(name: str) -> Origin:
    """What a tree is that a test makes up."""
    return Origin(kind="made", name=name)


def heed_interrupts() -> None:
    """A shell's background jobs ignore SIGINT, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


HEAD = "Subject: sum all values\nPack: 07\nOrigin: written for patchlane\nLicence: Apache-2.0\n\n"
_ran: dict[str, Run] = {}


@dataclass
class Toy:
    """The toy's folders under one temporary folder."""

    root: Path

    @property
    def packs(self) -> Path:
        return self.root / "packs"

    @property
    def folder(self) -> Path:
        return self.packs / "07_toy"

    @property
    def upstream(self) -> Path:
        return self.root / "upstream"

    @property
    def store(self) -> Store:
        return Store(self.root / "store", offline=True)

    def patch(self, new: dict[str, str], old: dict[str, str] = SOURCE) -> str:
        return diff(self.root, old, new)

    def publishes(self, releases: str, needs: str | None = None) -> None:
        """Write the releases that packs and needs may name, and the sets of needs where there are any."""
        write_tree(self.packs, {RELEASES: releases} | ({} if needs is None else {"needs.yaml": needs}))
        load_releases.cache_clear()
        load_needs.cache_clear()

    def pack(
        self, patch: str | None = None, reproducer: str = REPRODUCER, record: str = RECORD, folder: str = "07_toy"
    ) -> Pack:
        """Write the pack; by default with the good patch, and of the toy's release where no releases are written."""
        if not (self.packs / RELEASES).exists():
            self.publishes(PUBLISHED)
        if patch is None:
            patch = HEAD + self.patch(edited(TOTAL, FIRST))
        write_tree(self.packs / folder, {"pack.yaml": record, "reproducer.py": reproducer, "fix.patch": patch})
        return load_pack(self.packs / folder)

    def run(self, pack: Pack, source: dict[str, str] = SOURCE, **request: object) -> Run:
        """Both arms on the toy's release, or on the folder ``upstream`` as it stands, with these sources."""
        subprocess.run(["rm", "-rf", str(self.upstream)], check=True)
        write_tree(self.upstream, source)
        if "upstream" not in request:
            self.publish(source)
        wanted = Request(**{"at": "upstream" if request.get("upstream") else "live", **request})
        return execute(pack, wanted, self.store, lambda arm, line: None)

    def ran(self, pack: Pack, source: dict[str, str] = SOURCE, **request: object) -> Run:
        """As ``run``, for tests of what is made of a run: in one process the same files are run once."""
        files = [path for path in (*self.packs.glob("*.yaml"), *pack.folder.iterdir()) if path.is_file()]
        key = repr([sorted((path.name, path.read_text()) for path in files), source, sorted(request.items())])
        if key not in _ran:
            _ran[key] = self.run(pack, source, **request)
        elif "upstream" not in request:
            self.publish(source)
        return dataclasses.replace(copy.deepcopy(_ran[key]), pack=pack, started=datetime.datetime.now(datetime.UTC))

    def publish(self, source: dict[str, str] = SOURCE, key: str = "b" * 64, label: str = "toyup 1.0") -> None:
        """Put the release of the pin into the store, as if it had been fetched."""
        trees = self.store.root / "trees"
        shutil.rmtree(trees / key, ignore_errors=True)
        digest = tree_digest(write_tree(trees / key, source))
        write_tree(trees, {f"{key}.json": json.dumps({"digest": digest, "label": label})})

    def repository(self, pack: Pack) -> Path:
        """A copy of the engine with the toy's packs as its own, for what reads the repository's root."""
        root = self.root / "repo"
        # with its bytecode, which another worker may be writing
        for name in ("patchlane", "reproducers"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        shutil.copytree(pack.folder.parent, root / "packs")
        return root

    def verb(self, root: Path, *args: str, **more: Any) -> subprocess.Popen[str]:
        """``python -m reproducers.ARGS`` of the repository copy ``root``, started in a session of its own."""
        environment = {**os.environ, "PYTHONPATH": str(root), "PATCHLANE_STORE": str(self.root / "store")}
        environment |= {"PATCHLANE_OFFLINE": "1", "COLUMNS": "200"}
        options = {"cwd": root, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
        options["preexec_fn"] = heed_interrupts
        command = [sys.executable, "-m", f"reproducers.{args[0]}", *args[1:]]
        return subprocess.Popen(command, env=environment, start_new_session=True, **options)
