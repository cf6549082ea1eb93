"""A rank's share of a checkpoint, written in a thread beside the steps.

Megatron has two callers for what ``dist_checkpointing.save`` leaves to be done (strategies/async_utils.py @
core_v0.19.0): one forks a process that holds the GPU and NCCL's threads, the other hands GPU memory to a process of its
own; and both leave indices and names to collectives of the training threads, which a run that fails does not reach.
Writing and digests leave Python's lock, so a thread is enough, and it ends with its rank.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from patchlane.base.files import file_sha256

THREADS = 4  # files of a rank, each with a thread that writes it; processors are the steps' too


class Files(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron's strategy, which keeps what the indices are made of: its writer, and on rank 0 the global metadata."""

    def __init__(self) -> None:
        super().__init__(thread_count=THREADS)
        self.writer: Any = None
        self.metadata: Any = None

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Any, async_strategy: str = "mcore") -> Any:
        """As Megatron's; threads of this process write, which pack 41 lets it be told."""
        return super().async_save(sharded_state_dict, checkpoint_dir, async_strategy, in_process=True)

    def _get_save_and_finalize_callbacks(self, writer: Any, planned: Any, async_strategy: str) -> Any:
        self.writer, (_, self.metadata, _) = writer, planned
        return super()._get_save_and_finalize_callbacks(writer, planned, async_strategy)


@dataclass(frozen=True)
class Part:
    """What a rank wrote: where each piece lies, by torch's ``WriteResult``, and {file: SHA-256}; or why it did not."""

    results: list[Any] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    failure: str = ""


def staged(writer: Any, copies: bool) -> list[Any]:
    """Megatron's lists of what goes into each file, tensors in host memory where no step changes them.

    ``copies``: they are in host memory as they are, and are copied. A rank with nothing to write has no list.
    """
    buckets: list[Any] = writer.preload_tensors(writer.write_buckets)
    if not copies:
        return buckets
    return [
        (path, key, (plain, [(item, tensor.clone()) for item, tensor in tensors]))
        for path, key, (plain, tensors) in buckets
    ]


def written(writer: Any, buckets: list[Any]) -> Part:
    """Write the files of ``buckets``, each synchronised with the disk, and hash them."""
    transforms = [writer.transforms] if hasattr(writer, "transforms") else []  # of torch 2.7 and later

    def write(bucket: Any) -> tuple[list[Any], Path, str]:
        _, results = writer.write_preloaded_data(transforms, 0, bucket, None, None, use_fsync=True)
        if isinstance(results, Exception):
            raise results
        return results, Path(bucket[0]), file_sha256(Path(bucket[0]))

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            files = list(pool.map(write, buckets))
    except Exception as error:  # an OSError, or torch's RuntimeError where a file could not be written to its end
        return Part(failure=next(itertools.chain(str(error).splitlines(), [type(error).__name__])))
    results = [result for of_file, _, _ in files for result in of_file]
    return Part(results, {path.name: digest for _, path, digest in files})
