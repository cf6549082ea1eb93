"""A trained model wherever it is kept: a run, one of its checkpoints, or exported safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from model.data.stored.encoding import Encoding
from model.definition.sizes import Size
from model.saved import reading, tensor_files, weights
from reproducers.base.errors import PatchlaneError

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 2**30  # bytes of a checkpoint's tensors that are read together


@dataclass(frozen=True)
class Opened:
    """``tensors``: reads them, each with its checkpoint's key, a part at a time. ``encoding``: of the text that it was
    trained on, None where that was not kept; ``dataset``: the digest of the data, None where it was not."""

    path: Path
    size: Size
    step: int
    encoding: Encoding | None
    dataset: str | None
    bytes: int
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]


def opened(source: Path) -> Opened:
    """What ``source`` has; of a run its newest checkpoint. No tensor is read yet, a checkpoint's digests are compared.

    Raises PatchlaneError where there is none, or where a file is damaged.
    """
    if (source / tensor_files.INDEX).is_file():
        return _of_tensor_files(source)
    path = reading.checkpoint(source)
    if (error := reading.damage(path)) is not None:
        raise PatchlaneError(f"{path} is damaged: {error}", "name another checkpoint of the run")
    kept, said = reading.shapes(path), reading.progress(path)
    try:
        encoding = Encoding.model_validate(said["encoding"]) if "encoding" in said else None
        size = Size.model_validate(said["size"])
    except ValidationError as other:
        why = other.errors()[0]["msg"]
        raise PatchlaneError(f"{path} is of another version: {why}", "use the version that wrote it") from other

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for group in weights.groups(kept, AT_ONCE):
            yield from reading.read(path, group).items()

    dataset = said.get("loader", {}).get("dataset")
    return Opened(path, size, said["step"], encoding, dataset, sum(map(weights.size_of, kept.values())), tensors)


def _of_tensor_files(folder: Path) -> Opened:
    config = tensor_files.config(folder)
    return Opened(
        folder, config.size, config.step, config.encoding, None, tensor_files.size_of(folder),
        lambda: weights.brought(folder, config.size),
    )  # fmt: skip
