"""A run's checkpoints without Megatron: which there are, whether one is whole, and whole tensors of what it holds.

Whatever layout wrote a tensor, torch puts it together from the parts.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256, within

if TYPE_CHECKING:  # 4 s, which a command that has no checkpoint need not take
    import torch
    from torch import Tensor

DIGESTS = "integrity.json"  # in a checkpoint's folder
READERS = 4  # files that are compared at a time
COMMON = "common_state/shard_0_1"  # what is no tensor, by core_v0.19.0 (dist_checkpointing/serialization.py)


def name(step: int) -> str:
    """The folder's name of a checkpoint."""
    return f"step_{step:07d}"


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder."""
    return int(path.name.removeprefix("step_"))


def complete(folder: Path) -> list[Path]:
    """Finished checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step_*") if re.fullmatch(r"step_\d{7,}", path.name) and path.is_dir())


def checkpoint(source: Path) -> Path:
    """``source`` if it is a checkpoint, the newest of a run's. Raises PatchlaneError where there is none."""
    if (source / "metadata.json").is_file():
        return source
    found = complete(source / "checkpoints")
    if not found:
        raise PatchlaneError(f"{source} is no checkpoint, and no run with one", "name RUN or RUN/checkpoints/step_N")
    return found[-1]


def whole(source: Path) -> Path:
    """``checkpoint`` whose files are by their digests what was written. Raises PatchlaneError where they are not."""
    path = checkpoint(source)
    with staying(path):
        if (error := damage(path)) is not None:
            raise PatchlaneError(f"{path} is damaged: {error}", "name another checkpoint of the run")
    return path


def digest(path: Path) -> str | None:
    """What tells a checkpoint's content from any other's: the SHA-256 of its digests, None where it has none."""
    file = path / DIGESTS
    return file_sha256(file) if file.is_file() else None


@contextlib.contextmanager
def staying(path: Path) -> Iterator[None]:
    """Raise PatchlaneError where the checkpoint ``path`` goes while it is read: a run that goes on keeps the newest."""
    try:
        yield
    except BaseException as error:  # torch's CheckpointException is no Exception
        if path.is_dir() or isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        raise PatchlaneError(
            f"{path} went while it was read: its run goes on and has newer ones",
            "run this again with the run's folder, which takes the newest; a run with --set keep=N keeps N",
        ) from error


def damage(path: Path, rank: int = 0, ranks: int = 1) -> Exception | None:
    """What is wrong with the files of a checkpoint by their digests, None where nothing is.

    Of ``ranks`` that share the work, the one that is ``rank`` looks at its share alone.
    """

    def compare(file: str, digest: str) -> None:
        if file_sha256(within(path, file)) != digest:
            raise ValueError(f"{file} is not what was written")

    try:
        kept = sorted(json.loads((path / DIGESTS).read_bytes())["files"].items())[rank::ranks]
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(compare, *zip(*kept, strict=True)))
    # all but OSError: the file is not what Megatron writes
    except (OSError, ValueError, KeyError, TypeError, AttributeError, PatchlaneError) as error:
        return error
    return None


def shapes(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """{key: (shape, dtype)} of the model's tensors, in the order of their keys; the optimizer's are left out."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    with staying(path):
        known = FileSystemReader(path).read_metadata().state_dict_metadata
    return {
        key: (kept.size, kept.properties.dtype)
        for key, kept in sorted(known.items())
        if isinstance(kept, TensorStorageMetadata) and not key.startswith("optimizer.")
    }


def read(path: Path, wanted: dict[str, tuple[torch.Size, torch.dtype]]) -> dict[str, Tensor]:
    """These tensors of a checkpoint, whole, in host memory."""
    import torch

    tensors: dict[str, Any] = {key: torch.empty(shape, dtype=dtype) for key, (shape, dtype) in wanted.items()}
    _load(tensors, path)
    return tensors


def progress(path: Path) -> dict[str, Any]:
    """What the run said of itself when it saved: its step, its size."""
    import torch

    held: dict[str, Any] = {COMMON: io.BytesIO()}
    _load(held, path)
    common = held[COMMON]
    if isinstance(common, io.BytesIO):
        common.seek(0)
        common = torch.load(common, weights_only=True)
    found: dict[str, Any] = common[0]["progress"]
    return found


def tokenizer(said: dict[str, Any]) -> bytes | None:
    """The content of the tokenizer's file that a checkpoint's ``progress`` has, None where it has none."""
    return said["tokenizer"].encode() if "tokenizer" in said else None


def _load(state: dict[str, Any], path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemReader, load

    with staying(path), warnings.catch_warnings(action="ignore"):  # that no process group is there
        load(state, storage_reader=FileSystemReader(path), no_dist=True)
