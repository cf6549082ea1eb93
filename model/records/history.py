"""Read ``metrics.jsonl`` back: every table and picture is made from it alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from model.records.records import ENTROPY, Diagnosis, Event, Record, Train, Valid, from_line
from reproducers.base.errors import PatchlaneError

NAME = "metrics.jsonl"


def lines(path: Path) -> tuple[list[bytes], bytes]:
    """(whole lines without line feeds, rest); the rest is a last line that is being written or was cut off."""
    try:
        *whole, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        remedy = "name a run's directory: the --out of model.train"
        raise PatchlaneError(f"no {path.name} in {path.parent}", remedy) from None
    except OSError as error:
        raise PatchlaneError(f"{path} cannot be read: {error.strerror}", "name the directory of a run") from error
    return whole, rest


def parse(path: Path, whole: Iterable[bytes]) -> list[Record]:
    """The records of ``path``'s lines. Raises PatchlaneError for the first line that is no record."""
    records = []
    for number, line in enumerate(whole, 1):
        try:
            records.append(from_line(line))
        except ValueError:
            shown = line[:60].decode(errors="replace")
            remedy = f"look at it with sed -n {number}p {path}; delete that line to go on without it"
            raise PatchlaneError(f"{path}, line {number} is not a record: {shown!r}", remedy) from None
    return records


def read(run_dir: Path) -> list[Record]:
    """The records of a finished or running run, without a last line that is being written.

    Raises PatchlaneError if there is no such file, if it is empty, or if a whole line is no record.
    """
    path = run_dir / NAME
    records = parse(path, lines(path)[0])
    if not records:
        raise PatchlaneError(f"{path} has no records yet", "wait for the first step, or name another run directory")
    return records


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
