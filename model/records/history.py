"""Read ``metrics.jsonl`` back: every table and picture is made from it alone.

A run of a million steps has some 700 MB of it, so lines are read one at a time, and none is parsed for its step alone.
A kept run's may be packed by xz.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from model.records.records import ENTROPY, Diagnosis, Event, Record, Train, Valid, from_line
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz

NAME = "metrics.jsonl"
HEAD = re.compile(
    rb'\{"schema_version":1,"time":[0-9.e+-]+,"step":([0-9]+),"kind":"(train|valid|diagnosis|event)",.*\}'
)
BAD = re.compile(rb'"(?:NaN|-?Infinity)"|"skipped":true')
MANY = ("train", "diagnosis")  # the kinds of which a long run has so many that a picture needs only some


class Line(NamedTuple):
    """A whole line without its line feed, counted from 1, with its record's step and kind."""

    number: int
    text: bytes
    step: int
    kind: str


def lines(path: Path) -> Iterator[Line]:
    """The file's whole lines, not a last one that is being written or was cut off.

    Raises PatchlaneError where there is no file, and at the first line that is no record.
    """
    try:
        with xz.opened(path) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                text = line[:-1]
                if head := HEAD.fullmatch(text):
                    yield Line(number, text, int(head[1]), head[2].decode())
                else:
                    record = parsed(path, number, text)
                    yield Line(number, text, record.step, record.kind)
    except FileNotFoundError:
        remedy = "name a run's directory: the --out of model.train"
        raise PatchlaneError(f"no {path.name} in {path.parent}", remedy) from None
    except OSError as error:
        raise PatchlaneError(f"{path} cannot be read: {error.strerror}", "name the directory of a run") from error


def parsed(path: Path, number: int, text: bytes) -> Record:
    """The record of line ``number`` of ``path``. Raises PatchlaneError if it is none."""
    try:
        return from_line(text)
    except ValueError:
        shown = text[:60].decode(errors="replace")
        remedy = f"look at it with sed -n {number}p {path}; delete that line to go on without it"
        raise PatchlaneError(f"{path}, line {number} is not a record: {shown!r}", remedy) from None


def read(run_dir: Path, most: int | None = None) -> list[Record]:
    """The records of a finished or running run, without a last line that is being written.

    ``most``: of training steps, and of diagnosed ones, every so manieth where there are more, at least the last one and
    all that are not finite. Raises PatchlaneError if there is no such file, if it is empty, or if a whole line that is
    read is no record.
    """
    path = run_dir / NAME
    every = dict.fromkeys(MANY, 1)
    if most is not None:
        counts = Counter(line.kind for line in lines(path))
        every = {kind: -(-counts[kind] // most) for kind in MANY}
    records, seen = list[Record](), Counter[str]()
    passed: dict[str, Line] = {}  # of each kind the last one, where it was left out
    for line in lines(path):
        seen[line.kind] += 1
        passed.pop(line.kind, None)
        if seen[line.kind] % every.get(line.kind, 1) and not BAD.search(line.text):
            passed[line.kind] = line
        else:
            records.append(parsed(path, line.number, line.text))
    records += [parsed(path, line.number, line.text) for line in passed.values()]
    if not records:
        raise PatchlaneError(f"{path} has no records yet", "wait for the first step, or name another run directory")
    return records


def any_step(run_dir: Path) -> bool:
    """Whether the run has taken a step."""
    return any(line.kind == "train" for line in lines(run_dir / NAME))


def named(run_dir: Path, name: str) -> list[Event]:
    """The events called ``name``, in the order of the file; none where there is no file. No other line is parsed."""
    path = run_dir / NAME
    if not xz.place(path).exists():
        return []
    mark = f'"name":"{name}"'.encode()
    found = (line for line in lines(path) if line.kind == "event" and mark in line.text)
    return events((parsed(path, line.number, line.text) for line in found), name)


def train(records: Iterable[Record]) -> list[Train]:
    """The training steps in order; the later record of a step that was written twice."""
    return [record for _, record in sorted({r.step: r for r in records if isinstance(r, Train)}.items())]


def valid(records: Iterable[Record], name: str | None = None) -> list[Valid]:
    """The held-out losses in order, of the whole or of the set called ``name``; of a step evaluated twice the later."""
    found = {r.step: r for r in records if isinstance(r, Valid) and r.name == name}
    return [record for _, record in sorted(found.items())]


def held_out_names(records: Iterable[Record]) -> list[str]:
    """The names of the held-out sets, in the order in which they were first evaluated."""
    return list(dict.fromkeys(r.name for r in records if isinstance(r, Valid) and r.name is not None))


def diagnoses(records: Iterable[Record]) -> list[Diagnosis]:
    """The diagnosed steps in order; the later record of a step that was diagnosed twice."""
    return [record for _, record in sorted({r.step: r for r in records if isinstance(r, Diagnosis)}.items())]


def events(records: Iterable[Record], name: str) -> list[Event]:
    """The events called ``name``, in the order of the file."""
    return [record for record in records if isinstance(record, Event) and record.name == name]


def entropy(records: Iterable[Record]) -> float | None:
    """Unigram entropy of the training text in nats, None where the run's dataset had none."""
    values = [event.detail.get(ENTROPY) for event in events(records, "dataset")]
    return next((float(value) for value in reversed(values) if isinstance(value, int | float)), None)
