"""Megatron's distributed checkpoints, written beside the steps: a folder appears by rename, whole or not at all.

``RUN/checkpoints/step_0000100/`` holds model, optimizer, schedule and, in its common part, the run's progress. Each
rank writes its share, by Megatron's fully parallel strategy, and hashes it; the hashes are checked before any file is
read, as some are pickles. Any data, expert or pipeline layout can load it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from model.definition.recipes import Optimizer
from model.kinds.run import OptimizerFormat
from model.loop.ranks import agreement, meeting
from model.loop.saving import sharded, writing
from model.loop.saving.writing import Files
from model.saved import reading
from model.saved import writing as on_disk
from model.saved.reading import complete, damage, name
from model.step.engine import Engine
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256, write_atomic

logger = logging.getLogger("model.loop.saving.checkpoint")
PARTIAL, DAMAGED = ".partial-", ".damaged-"
PART = ".part-"  # in a partial folder: what a rank tells of its share, should torchrun's agent have gone
FAILED = 120.0  # seconds that a run whose steps have failed waits for the checkpoint that is being written


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has its name, and what it cost."""

    path: Path
    step: int
    blocked: float  # seconds that the steps waited for its tensors to be in host memory
    written: float  # seconds from its begin until this rank's files and digests were written
    seconds: float  # from its begin until it had its name


class Saver:
    """Writes a run's checkpoints, one at a time, beside its steps. All ranks make one and call its methods.

    Ranks tell each other by the store that they met through, so that a checkpoint gets its name whatever the steps do,
    as long as the processes live; once they ``outlive`` torchrun's agent, which may hold that store, by files of the
    partial folder. A kill at any moment leaves the older checkpoints and at most one partial folder.
    Where a rank cannot write (a full disk), ``begin`` or ``finish`` raises PatchlaneError on every rank; the older
    checkpoints stay, the partial folder goes.
    """

    def __init__(self, folder: Path, keep: int = 2, wait_limit: float = 1200.0) -> None:
        """``keep``: all but so many of the newest go when a checkpoint has its name. ``wait_limit``: seconds that
        rank 0 waits for another one's share."""
        self.folder, self.keep, self.wait_limit = folder, keep, wait_limit
        self._strategy: FullyParallelSaveStrategyWrapper | None = None
        self._number = 0
        self.outlives = False  # whether the run has been asked to stop: then torchrun's agent may end before it
        self._job: _Job | None = None

    @property
    def pending(self) -> bool:
        """Whether a checkpoint has been begun and not finished."""
        return self._job is not None

    @property
    def busy(self) -> bool:
        """Whether this rank still writes or, on rank 0, waits for the others' shares."""
        return self._job is not None and self._job.thread is not None and self._job.thread.is_alive()

    def begin(self, engine: Engine, step: int, progress: dict[str, Any]) -> None:
        """Copy step ``step`` with ``progress`` (plain values, equal on all ranks) to host memory; begin to write it."""
        began = time.perf_counter()
        partial = self.folder / (PARTIAL + name(step))
        agreement.first(lambda: _begin(partial))
        engine.gather()
        if self._strategy is None:
            self._strategy = FullyParallelSaveStrategyWrapper(Files(), parallel_state.get_data_parallel_group(), True)
        form = engine.run.optimizer_format
        state = sharded.state(engine, form) | {"progress": progress}
        dist_checkpointing.save(  # what it returns would write; ``writing`` does
            state,
            str(partial),
            self._strategy,
            async_sharded_save=True,
            async_strategy="mcore",
            content_metadata={**sharded.content(engine.recipe.optimizer, form)},
        )
        files = self._strategy.base_strategy
        buckets = agreement.every(lambda: _staged(files.writer, step, engine.run.on_cpu))
        self._number += 1
        job = _Job(partial, self.folder / name(step), step, self._number, began, files.writer, files.metadata)
        job.blocked = time.perf_counter() - began
        job.thread = threading.Thread(target=self._write, args=(job, buckets), name="checkpoint", daemon=True)
        self._job = job
        job.thread.start()

    def _write(self, job: _Job, buckets: list[Any]) -> None:
        part = writing.written(job.writer, buckets)
        job.written = time.perf_counter() - job.began
        try:
            self._tell(job, pickle.dumps(part))
            if dist.get_rank() == 0:
                self._name(job)
        except PatchlaneError as refusal:
            job.refusal = refusal
        except Exception as error:  # a thread that ended by it would look like one that has done its work
            logger.warning("%s could not be finished", job.final.name, exc_info=True)
            said = f"{job.final.name} could not be finished: {type(error).__name__}: {error}"
            job.refusal = PatchlaneError(said, "the same command goes on from the last checkpoint")
        job.seconds = time.perf_counter() - job.began

    def _tell(self, job: _Job, part: bytes) -> None:
        """Tell rank 0 of this rank's share, by a file too: the store may go before rank 0 has looked."""
        with contextlib.suppress(OSError):  # the disk may be what the rank has to tell of
            write_atomic(job.partial / f"{PART}{dist.get_rank()}", part)
        try:
            meeting.tell(f"{job.key}/{dist.get_rank()}", part)
        except PatchlaneError:
            if not self.outlives:
                raise

    def _told(self, job: _Job, rank: int) -> bytes:
        """On rank 0: what ``rank`` told of its share."""
        try:
            return meeting.told(f"{job.key}/{rank}", rank, self.wait_limit)
        except PatchlaneError:
            if not self.outlives:
                raise
        file, ends = job.partial / f"{PART}{rank}", time.monotonic() + self.wait_limit
        while not file.exists():
            if time.monotonic() > ends:
                raise PatchlaneError(f"rank {rank} told nothing within {self.wait_limit:g} s", meeting.RESUME)
            time.sleep(0.05)
        return file.read_bytes()

    def _name(self, job: _Job) -> None:
        """On rank 0: once every rank has told of its share, write the indices and give the checkpoint its name."""
        parts = [pickle.loads(self._told(job, rank)) for rank in range(dist.get_world_size())]
        with _refused(job.partial):
            for told in job.partial.glob(PART + "*"):
                told.unlink()
            for rank, part in enumerate(parts):
                if part.failure:
                    raise OSError(f"rank {rank}: {part.failure}")
            job.writer.finish(job.metadata, [part.results for part in parts])
            on_disk.write_metadata(job.partial)
            _finish(job.partial, job.final, self.keep, {k: v for part in parts for k, v in part.digests.items()})

    def wait(self) -> None:
        """Where the steps have failed: let this rank end its share and, on rank 0, name the checkpoint if all can."""
        if self._job is not None and self._job.thread is not None:
            self._job.thread.join(FAILED)

    def finish(self) -> Saved:
        """Wait until the checkpoint has its name."""
        job, self._job = self._job, None
        assert job is not None and job.thread is not None
        job.thread.join()
        agreement.every(job.check)
        return Saved(job.final, job.step, job.blocked, job.written, job.seconds)

    def save(self, engine: Engine, step: int, progress: dict[str, Any]) -> Saved:
        """``begin`` and ``finish``."""
        self.begin(engine, step, progress)
        return self.finish()


@dataclass
class _Job:
    """A checkpoint that is being written. ``metadata``: on rank 0, of all ranks' pieces."""

    partial: Path
    final: Path
    step: int
    number: int  # of this run's saves: it may come to a step again
    began: float
    writer: Any
    metadata: Any
    thread: threading.Thread | None = None
    blocked: float = 0.0
    written: float = 0.0
    seconds: float = 0.0
    refusal: PatchlaneError | None = None

    @property
    def key(self) -> str:
        """Of what ranks tell each other."""
        return f"checkpoint/{self.number}"

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal


def _staged(writer: Any, step: int, copies: bool) -> list[Any]:
    """``writing.staged``. Raises PatchlaneError where the host's memory has no room for this rank's share."""
    try:
        return writing.staged(writer, copies)
    except (MemoryError, RuntimeError) as error:  # torch's own, for pinned memory too
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise PatchlaneError(
            f"{name(step)}: host memory has no room for rank {dist.get_rank()}'s share: {why}",
            "more memory on the host, or --set save_every=0; the same command goes on from the last checkpoint",
        ) from error


def _begin(partial: Path) -> None:
    with _refused(partial):
        for stale in partial.parent.glob(PARTIAL + "*"):
            shutil.rmtree(stale)
        partial.mkdir(parents=True)


def _finish(partial: Path, final: Path, keep: int, digests: dict[str, str]) -> None:
    """Give a written checkpoint its digests and its name, and let the oldest go.

    ``digests``: of the ranks' files, which the ranks have synchronised; indices are written by now, and small.
    """
    folder = final.parent
    others = [path for path in partial.iterdir() if path.name not in digests]
    on_disk.write_digests(partial, digests | {path.name: file_sha256(path) for path in others})
    _sync(partial, [*others, partial / reading.DIGESTS])
    if final.exists():  # an earlier run got this far and resumed from before it
        final.replace(folder / (PARTIAL + "superseded-" + final.name))
    partial.replace(final)
    _sync_folder(folder)
    for old in complete(folder)[:-keep]:
        going = old.rename(folder / (PARTIAL + old.name))  # never half a checkpoint under a whole one's name
        shutil.rmtree(going)


@contextlib.contextmanager
def _refused(partial: Path) -> Iterator[None]:
    """Turn a refusal to write into a PatchlaneError, and remove what was written by then. On rank 0."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        free = shutil.disk_usage(partial.parents[1]).free >> 20
        cause = error.strerror or str(error)
        said = f"{partial.name.removeprefix(PARTIAL)} cannot be written, {free} MiB are free: {cause}"
        remedy = f"make room in {partial.parent}, then the same command goes on from the last checkpoint"
        raise PatchlaneError(said, remedy) from error


def _sync(folder: Path, paths: list[Path]) -> None:
    """Bytes on disk before the name is."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def supersede(folder: Path) -> None:
    """Before a run that starts afresh where another was: its checkpoints move aside, to ``folder.1`` or the next free.

    All ranks call it. Left there they would be the newest by their steps, resumed from and kept in the new ones' place.
    """
    if dist.get_rank() == 0 and complete(folder):
        number = next(n for n in itertools.count(1) if not folder.with_name(f"{folder.name}.{n}").exists())
        aside = folder.rename(folder.with_name(f"{folder.name}.{number}"))
        logger.warning("the earlier run's checkpoints moved to %s", aside)
    dist.barrier()


def verify(path: Path) -> None:
    """Compare every file with its digest, each rank some of them.

    All ranks call it. Raises PatchlaneError on all when one is damaged.
    """
    agreement.every(lambda: _compare(path, dist.get_rank(), dist.get_world_size()))


def _compare(path: Path, rank: int, ranks: int) -> None:
    if (error := damage(path, rank, ranks)) is not None:
        raise _damaged(path, error) from error


def newest(folder: Path) -> tuple[Path | None, dict[Path, PatchlaneError]]:
    """(the newest checkpoint that is whole, None without any; {a damaged one that is newer: what is wrong with it}).

    All ranks call it. Raises PatchlaneError if all are damaged.
    """
    damaged: dict[Path, PatchlaneError] = {}
    for path in reversed(complete(folder)):
        try:
            verify(path)
        except PatchlaneError as error:
            damaged[path] = error
            continue
        return path, damaged
    if damaged:
        what = next(iter(damaged.values())).what
        raise PatchlaneError(
            f"{what}; no checkpoint of the run is whole", "--fresh starts anew, or choose another --out"
        )
    return None, damaged


def set_aside(damaged: dict[Path, PatchlaneError]) -> dict[str, str]:
    """Rename damaged checkpoints, so that none is resumed from or counted again; {new name: what is wrong}.

    All ranks call it.
    """
    names = {}
    for path, error in damaged.items():
        aside = path.with_name(DAMAGED + path.name)
        names[aside.name] = error.what
        if dist.get_rank() == 0:
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier time: the run came here again from before it
            path.rename(aside)
            logger.warning("%s; it is now %s, and the run goes on from the one before", error.what, aside.name)
    dist.barrier()
    return names


def gib(path: Path) -> float:
    """Size of a checkpoint's files in GiB."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**30


def progress(path: Path) -> dict[str, Any]:
    """What ``save`` was given, of a checkpoint that ``verify`` accepts. PatchlaneError when it cannot be read."""
    try:
        common = dist_checkpointing.load_common_state_dict(str(path))
        saved: dict[str, Any] = common["progress"]
    except (CheckpointingException, OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error
    return saved


def load(engine: Engine, path: Path) -> None:
    """Restore model, optimizer and schedule from what ``verify`` accepts.

    Raises PatchlaneError when it cannot be read, or holds another optimizer, or one in the format of before.
    """
    held, ours = dist_checkpointing.load_content_metadata(str(path)), engine.recipe.optimizer
    forms: tuple[OptimizerFormat, ...] = get_args(OptimizerFormat)
    form = next((form for form in forms if held == sharded.content(ours, form)), None)
    if form is None:
        cause, remedy = f"{path} holds its optimizer as an earlier version of this project wrote it", ""
        for other in get_args(Optimizer):
            if held in [sharded.content(other, form) for form in forms]:
                cause, remedy = (
                    f"{path} holds moments of {other}, this run is of {ours}",
                    f"--set optimizer={other}; or ",
                )
        raise PatchlaneError(
            cause,
            f"{remedy}python -m model.weights export {path} WEIGHTS, then python -m model.weights import WEIGHTS OUT: "
            "a run with --out OUT begins with its weights",
        )
    wanted = sharded.wanted(engine, form)
    try:
        loaded = dist_checkpointing.load(wanted, str(path))
    except (CheckpointingException, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error
    sharded.restore(engine, loaded, form)


def load_weights(engine: Engine, path: Path, drawn: Collection[str] = ()) -> None:
    """Put the weights of a checkpoint that holds nothing else into the model, and into the optimizer's fp32 masters.
    Those of the keys ``drawn``, which it has not, stay as the model drew them.

    Raises PatchlaneError where the model wants others.
    """
    wanted = {name: part for name, part in sharded.weights(engine.inner).items() if part.key not in drawn}
    try:
        loaded = dist_checkpointing.load({"model": wanted}, str(path))
    except (CheckpointingException, OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error
    engine.inner.load_state_dict(loaded["model"], strict=False)  # all but the states that are no tensors
    engine.optimizer.reload_model_params()


def _damaged(path: Path, error: Exception) -> PatchlaneError:
    said = str(error).strip().splitlines() or [type(error).__name__]
    return PatchlaneError(f"{path.name} cannot be loaded: {said[0]}", _remedy(path))


def _remedy(path: Path) -> str:
    return f"mv {path} elsewhere to resume from the one before it"
