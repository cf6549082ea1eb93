"""``metrics.jsonl``: a run's records, one a line; all tables and pictures are made from it.

A step's line leaves the process before the next step begins. A run resumed at step k continues the same file: lines of
later steps, which the run will write again, move to ``metrics.superseded.jsonl``.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from model.records import history
from model.records.records import Event, Record, Value, from_line, to_line
from model.records.sinks import Sink
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import replacing

SUPERSEDED = "metrics.superseded.jsonl"
BLOCK = 1 << 20  # bytes that are read at a time from a file's end
logger = logging.getLogger("model.records.metrics")


def claim(run_dir: Path) -> FileLock:
    """The lock of a run's folder, held: who has it may write and move what is in there.

    Raises PatchlaneError if another process holds it or if the folder cannot be written.
    """
    lock = FileLock(run_dir / ".metrics.lock", timeout=0)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        remedy = "wait for it, end it, or choose another run directory"
        raise PatchlaneError(f"{run_dir / history.NAME} is being written by another process", remedy) from None
    except OSError as error:
        remedy = "choose another run directory"
        raise PatchlaneError(f"{run_dir} cannot be written: {error.strerror}", remedy) from error
    return lock


class MetricsLog:
    """The open file of one run; for rank 0 only. ``resume_step`` 0 moves all earlier records aside.

    ``held``: what ``claim`` gave; without it the folder is claimed here. Closing gives it back. Raises PatchlaneError
    if another process has the file open, a whole line is no record, or it cannot be written.
    """

    def __init__(
        self, run_dir: Path, resume_step: int = 0, sinks: Sequence[Sink] = (), held: FileLock | None = None
    ) -> None:
        self.path, self.sinks = run_dir / history.NAME, sinks
        self._lock = held or claim(run_dir)
        try:
            _mend(self.path)
            _supersede(self.path, resume_step)
            self._file = self.path.open("ab", buffering=0)
        except BaseException:
            self._lock.release()
            raise

    def write(self, record: Record) -> None:
        """Append ``record`` and hand it to the sinks."""
        line, why = to_line(record), "no space left"
        try:
            whole = self._file.write(line) == len(line)
        except OSError as error:
            whole, why = False, str(error.strerror)
        if not whole:
            remedy = f"make room in {self.path.parent}, then resume from the last checkpoint"
            raise PatchlaneError(f"{self.path} cannot be written: {why}", remedy)
        for sink in self.sinks:
            sink.write(record)

    def event(self, step: int, name: str, **detail: Value) -> None:
        """Append an event."""
        self.write(Event(step=step, name=name, detail=detail))

    def back_to(self, step: int, sinks: Sequence[Sink] = ()) -> None:
        """Go on after ``step``, as a run that is resumed there does; ``sinks`` take the place of the old ones."""
        for sink in self.sinks:
            sink.close()
        self._file.close()
        _supersede(self.path, step)
        self._file, self.sinks = self.path.open("ab", buffering=0), sinks

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        self._file.close()
        self._lock.release()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _mend(path: Path) -> None:
    """Complete a last line that lacks only its line feed; move a shorter one aside."""
    if not path.exists() or not (rest := _rest(path)):
        return
    try:
        from_line(rest)
        with path.open("ab") as file:
            file.write(b"\n")
    except ValueError:
        logger.warning("%s ended in the middle of a line (%d bytes): moved to %s", path, len(rest), SUPERSEDED)
        fragment = json.dumps({"kind": "fragment", "text": rest.decode(errors="replace")}).encode()
        _move_aside(path, [fragment])
        os.truncate(path, path.stat().st_size - len(rest))


def _rest(path: Path) -> bytes:
    """What comes after the last line feed."""
    rest, end = b"", path.stat().st_size
    with path.open("rb") as file:
        while end and b"\n" not in rest:
            begin = max(end - BLOCK, 0)
            file.seek(begin)
            rest, end = file.read(end - begin) + rest, begin
    return rest.rpartition(b"\n")[2]


def _supersede(path: Path, resume_step: int) -> None:
    """Keep the lines of steps up to ``resume_step``. If killed in between, the next call finishes the work."""
    if not path.exists():
        return
    moved = {line.number: line.text for line in history.lines(path) if not 0 < resume_step >= line.step}
    if not moved:
        return
    logger.info("%d records after step %d moved to %s", len(moved), resume_step, SUPERSEDED)
    _move_aside(path, [*moved.values()])
    with path.open("rb") as file:
        _write(path, (line.rstrip(b"\n") for number, line in enumerate(file, 1) if number not in moved))


def _move_aside(path: Path, moved: Sequence[bytes]) -> None:
    """Add ``moved`` to the superseded lines, unless they are there."""
    aside, added = path.with_name(SUPERSEDED), sum(len(line) + 1 for line in moved)
    if not aside.exists():
        _write(aside, moved)
        return
    with aside.open("rb") as before:
        if aside.stat().st_size >= added:
            before.seek(-added, os.SEEK_END)
            if before.read() == b"".join(line + b"\n" for line in moved):
                return
            before.seek(0)
        _write(aside, itertools.chain((line.rstrip(b"\n") for line in before), moved))


def _write(path: Path, lines: Iterable[bytes]) -> None:
    """Replace the file by one of these lines, at once."""
    with replacing(path) as scratch, scratch.open("wb") as file:
        file.writelines(line + b"\n" for line in lines)
