"""A checkpoint of weights alone, in the format that Megatron's distributed checkpoints have."""

from __future__ import annotations

import io
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemWriter, save

from model.saved import reading
from patchlane.base import disk
from patchlane.base.files import file_sha256

METADATA = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}


def _packed(value: Any) -> io.BytesIO:
    """What is no tensor, as bytes that ``torch.load`` takes with ``weights_only``."""
    held = io.BytesIO()
    torch.save(value, held)
    held.seek(0)
    return held


def write_metadata(path: Path) -> None:
    """Write which format a checkpoint has, as Megatron does (dist_checkpointing/core.py @ core_v0.19.0)."""
    (path / "metadata.json").write_text(json.dumps(METADATA))


def write_digests(path: Path, digests: dict[str, str]) -> None:
    """Write {file: SHA-256} of a checkpoint as Megatron does (dist_checkpointing/validation.py @ core_v0.19.0)."""
    (path / reading.DIGESTS).write_text(json.dumps({"algorithm": "sha256", "files": digests}, indent=2))


def write(path: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> Path:
    """Write a checkpoint of these whole tensors; it appears by rename. Raises PatchlaneError where the host refuses."""
    partial = path.with_name(f".partial-{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with warnings.catch_warnings(action="ignore"):  # that no process group is there
            save(
                {**tensors, reading.COMMON: _packed([{"progress": progress}])},
                storage_writer=FileSystemWriter(partial),
                no_dist=True,
            )
        write_metadata(partial)
        write_digests(partial, {file.name: file_sha256(file) for file in sorted(partial.iterdir())})
        partial.rename(path)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if (refused := _of_disk(error)) is None:
            raise
        raise disk.described(refused, path) from error
    return path


def _of_disk(error: BaseException | None) -> OSError | None:
    """The OSError that ``error`` is or came of, none of an interrupt: torch itself only says that a file has not the
    size that it wants, in a CheckpointException, which is no Exception."""
    if isinstance(error, CheckpointException):
        error, _ = next(iter(error.failures.values()))
    elif not isinstance(error, Exception):
        return None
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
