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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint import CheckpointException

from model.loop.ranks import agreement
from model.loop.saving import sharded
from model.loop.saving.writing import THREADS, Writing
from model.patched import seams
from model.saved import reading, writing
from model.saved.reading import complete, damage, name
from model.step.engine import Engine
from reproducers.base.errors import PatchlaneError
from reproducers.base.files import file_sha256

logger = logging.getLogger("model.loop.saving.checkpoint")
PARTIAL, DAMAGED = ".partial-", ".damaged-"


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

    A kill at any moment leaves the older checkpoints and at most one partial folder. Where a rank cannot write (a full
    disk), ``begin`` or ``finish`` raises PatchlaneError on every rank; the older checkpoints stay, the partial folder
    goes.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """``keep``: all but so many of the newest go when a checkpoint has its name."""
        self.folder, self.keep = folder, keep
        self._strategy: FullyParallelSaveStrategyWrapper | None = None
        self._writing: tuple[Writing, Path, int, float, float] | None = None

    @property
    def pending(self) -> bool:
        """Whether a checkpoint has been begun and not finished."""
        return self._writing is not None

    @property
    def busy(self) -> bool:
        """Whether this rank still writes."""
        return self._writing is not None and self._writing[0].busy

    def begin(self, engine: Engine, step: int, progress: dict[str, Any]) -> None:
        """Copy step ``step`` with ``progress`` (plain values, equal on all ranks) to host memory; begin to write it."""
        began = time.perf_counter()
        partial = self.folder / (PARTIAL + name(step))
        agreement.first(lambda: _begin(partial))
        engine.gather()
        seams.CHECKPOINT_QUEUE()
        if self._strategy is None:
            files = TorchDistSaveShardedStrategy(thread_count=THREADS)
            self._strategy = FullyParallelSaveStrategyWrapper(files, parallel_state.get_data_parallel_group(), True)
        state = sharded.state(engine) | {"progress": progress}
        with _refused(partial):
            request = dist_checkpointing.save(
                state, str(partial), self._strategy, async_sharded_save=True, async_strategy="mcore",
                content_metadata={**sharded.CONTENT},
            )  # fmt: skip
            begun = Writing(request, copies=engine.run.on_cpu)
        self._writing = begun, partial, step, began, time.perf_counter() - began

    def finish(self) -> Saved:
        """Wait until all ranks have written, and give the checkpoint its name."""
        assert self._writing is not None
        (begun, partial, step, began, blocked), self._writing = self._writing, None
        final, digests = self.folder / name(step), dict[str, str]()
        with _refused(partial):
            mine = begun.finish()
        every: list[dict[str, str]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        for of_rank in every:
            digests |= of_rank
        agreement.first(lambda: _finish(partial, final, self.keep, digests))
        return Saved(final, step, blocked, begun.seconds, time.perf_counter() - began)

    def save(self, engine: Engine, step: int, progress: dict[str, Any]) -> Saved:
        """``begin`` and ``finish``."""
        self.begin(engine, step, progress)
        return self.finish()


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
    with _refused(partial):
        others = [path for path in partial.iterdir() if path.name not in digests]
        writing.write_digests(partial, digests | {path.name: file_sha256(path) for path in others})
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
    """Turn a refusal to write into a PatchlaneError, and remove what was written by then.

    Megatron hands what any rank met while it wrote tensors to rank 0 and raises CheckpointException on all; what rank 0
    meets alone (indices and digests, written last) is an OSError there, and the others learn of it as it ends.
    """
    try:
        yield
    except (OSError, CheckpointException) as error:
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        free = shutil.disk_usage(partial.parents[1]).free >> 20
        said = f"{partial.name.removeprefix(PARTIAL)} cannot be written, {free} MiB are free: {_cause(error)}"
        remedy = f"make room in {partial.parent}, then the same command goes on from the last checkpoint"
        raise PatchlaneError(said, remedy) from error


def _cause(error: OSError | CheckpointException) -> str:
    """One line; of a failure on several ranks the first. Only rank 0 is told what it was."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    failures = error.failures
    said = [f"rank {rank}: {str(failure).splitlines()[0]}" for rank, (failure, _) in sorted(failures.items())]
    return said[0] if said else "rank 0 says on which rank and why"


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

    Raises PatchlaneError when it cannot be read, or holds its optimizer in the format of before.
    """
    if dist_checkpointing.load_content_metadata(str(path)) != sharded.CONTENT:
        raise PatchlaneError(
            f"{path} holds its optimizer as an earlier version of this project wrote it",
            f"python -m model.weights export {path} WEIGHTS, then python -m model.weights import WEIGHTS OUT: a run "
            "with --out OUT begins with its weights",
        )
    wanted = sharded.wanted(engine)
    try:
        loaded = dist_checkpointing.load(wanted, str(path))
    except (CheckpointingException, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error
    sharded.restore(engine, loaded)


def load_weights(engine: Engine, path: Path) -> None:
    """Put the weights of a checkpoint that holds nothing else into the model, and into the optimizer's fp32 masters.

    Raises PatchlaneError where the model wants others.
    """
    wanted = sharded.weights(engine)
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
