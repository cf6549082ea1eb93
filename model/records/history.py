"""Reading ``metrics.jsonl`` back: the one input of every table and picture."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from model.records.records import ENTROPY, Event, Record, Train, Valid, from_line
from reproducers.base.errors import PatchlaneError

NAME = "metrics.jsonl"


def lines(path: Path) -> tuple[list[bytes], bytes]:
    """Whole lines without their line feeds, and what stands after the last one: a line being written or cut off."""
    try:
        *whole, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        remedy = "name the directory of a run: the one that model.train wrote"
        raise PatchlaneError(f"no {path.name} in {path.parent}", remedy) from None
    except OSError as error:
        raise PatchlaneError(f"{path} cannot be read: {error.strerror}", "name the directory of a run") from error
    return whole, rest


def parse(path: Path, whole: Iterable[bytes]) -> list[Record]:
    """The records of ``path``'s lines. PatchlaneError naming the first that is not one."""
    found = []
    for number, line in enumerate(whole, 1):
        try:
            found.append(from_line(line))
        except ValueError:
            shown = line[:60].decode(errors="replace")
            remedy = f"look at it with sed -n {number}p {path}; delete that line to go on without it"
            raise PatchlaneError(f"{path}, line {number} is not a record: {shown!r}", remedy) from None
    return found


def read(run_dir: Path) -> list[Record]:
    """The records of a run, finished or still going on (a last line being written is left out).

    PatchlaneError when there is no such file, it is empty, or a line inside it is not a record.
    """
    path = run_dir / NAME
    found = parse(path, lines(path)[0])
    if not found:
        raise PatchlaneError(f"{path} has no records yet", "wait for the first step, or name another run directory")
    return found


def train(records: Iterable[Record]) -> list[Train]:
    """The training steps in order; of a step written twice the later record."""
    return [record for _, record in sorted({r.step: r for r in records if isinstance(r, Train)}.items())]


def valid(records: Iterable[Record]) -> list[Valid]:
    """The held-out losses in order; of a step evaluated twice the later record."""
    return [record for _, record in sorted({r.step: r for r in records if isinstance(r, Valid)}.items())]


def events(records: Iterable[Record], name: str) -> list[Event]:
    """The events of that name as written."""
    return [record for record in records if isinstance(record, Event) and record.name == name]


def entropy(records: Iterable[Record]) -> float | None:
    """Unigram entropy of the training text in nats, None where the run's dataset had none."""
    found = [event.detail.get(ENTROPY) for event in events(records, "dataset")]
    return next((float(value) for value in reversed(found) if isinstance(value, int | float)), None)
