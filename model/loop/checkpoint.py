"""Megatron's distributed checkpoints, made crash-safe: a folder appears by rename, whole or not at all.

``RUN/checkpoints/step_0000100/`` holds model, optimizer, schedule and, in its common part, the run's progress. Megatron
hashes every file when it saves; the hashes are checked before any file is read, as some are pickles. Any data, expert
or pipeline layout can load it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from torch.distributed.checkpoint import CheckpointException

from model.loop import sharded
from model.loop.ranks import agreement
from model.patched import seams
from model.saved.reading import complete, damage, name
from model.step.engine import Engine
from reproducers.base.errors import PatchlaneError

logger = logging.getLogger("model.loop.checkpoint")
PARTIAL, DAMAGED = ".partial-", ".damaged-"


def save(engine: Engine, folder: Path, step: int, progress: dict[str, Any], keep: int = 2) -> Path:
    """Write step ``step`` with ``progress`` (plain values, equal on all ranks); all but the newest ``keep`` go.

    All ranks call it. A kill at any moment leaves the older checkpoints and at most one partial folder. Where a rank
    cannot write (a full disk), PatchlaneError on every rank; the older checkpoints stay, the partial folder goes.
    """
    partial, final = folder / (PARTIAL + name(step)), folder / name(step)
    agreement.first(lambda: _begin(partial))
    engine.gather()
    state = sharded.state(engine, loading=False) | {"progress": progress}
    seams.CHECKPOINT_QUEUE()
    with _refused(partial):
        dist_checkpointing.save(state, str(partial), content_metadata=sharded.CONTENT, verify_integrity=True)
    agreement.first(lambda: _finish(partial, final, keep))
    return final


def _begin(partial: Path) -> None:
    with _refused(partial):
        for stale in partial.parent.glob(PARTIAL + "*"):
            shutil.rmtree(stale)
        partial.mkdir(parents=True)


def _finish(partial: Path, final: Path, keep: int) -> None:
    """Give a written checkpoint its name, and let the oldest go."""
    folder = final.parent
    with _refused(partial):
        _sync(partial)
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


def _sync(folder: Path) -> None:
    """Bytes on disk before the name is."""
    for path in folder.rglob("*"):
        if path.is_file():
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
    """Compare every file with its digest, on rank 0. All ranks call it; PatchlaneError on all when one is damaged."""
    agreement.first(lambda: _compare(path))


def _compare(path: Path) -> None:
    if (error := damage(path)) is not None:
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
    """Restore model, optimizer and schedule from what ``verify`` accepts. PatchlaneError when it cannot be read."""
    wanted = sharded.state(engine, loading=True)
    mine = sharded.settings(engine, wanted)
    try:
        loaded = dist_checkpointing.load(wanted, str(path))
    except (CheckpointingException, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error
    sharded.restore(engine, mine, loaded)


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
