"""A trained model wherever it is kept: a run, one of its checkpoints, or exported safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from model.data.stored.dataset import DatasetRecord
from model.data.stored.encoding import Encoding
from model.families.nam56r import Size
from model.families.sizes import computed, recorded
from model.saved import reading, tensor_files, weights
from patchlane.base.errors import PatchlaneError

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 2**30  # bytes of a checkpoint's tensors that are read together


@dataclass(frozen=True)
class Opened:
    """``tensors``: reads them, each with its checkpoint's key, a part at a time. ``encoding``: of the text that it was
    trained on, None where that was not kept; ``dataset``: the digest of the data, None where it was not.
    ``tokenizer``: the content of its file, None of bytes and where it was not kept."""

    path: Path
    size: Size
    step: int
    encoding: Encoding | None
    dataset: str | None
    size_bytes: int
    tokenizer: bytes | None
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]


def opened(source: Path) -> Opened:
    """What ``source`` has; of a run its newest checkpoint. No tensor is read yet, a checkpoint's digests are compared.

    Raises PatchlaneError where there is none, or where a file is damaged.
    """
    if (source / tensor_files.INDEX).is_file():
        return _of_tensor_files(source)
    path = reading.whole(source)
    kept, said = reading.shapes(path), reading.progress(path)
    size, known = described(path, said)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for group in weights.groups(kept, AT_ONCE):
            yield from reading.read(path, group).items()

    dataset = said.get("loader", {}).get("dataset")
    size_of_all = sum(map(weights.size_of, kept.values()))
    return Opened(path, size, said["step"], known, dataset, size_of_all, reading.tokenizer(said), tensors)


def described(path: Path, said: dict[str, Any]) -> tuple[Size, Encoding | None]:
    """Size and encoding of the checkpoint ``path``, whose progress is ``said``. Raises PatchlaneError for another
    version's, and for an architecture that this project does not compute."""
    try:
        known = Encoding.model_validate(said["encoding"]) if "encoding" in said else None
        return recorded(said["size"]), known
    except ValidationError as error:
        where, why = ".".join(map(str, error.errors()[0]["loc"])), error.errors()[0]["msg"]
        raise PatchlaneError(
            f"{path} is of another version: {where}: {why}", "use the version that wrote it"
        ) from error


def encoding(
    path: Path, size: Size, known: Encoding | None, dataset: str | None, data: DatasetRecord | None
) -> Encoding:
    """How text is encoded for the weights at ``path``: as they say (``known``), or else as the dataset ``data`` does.

    ``dataset``: the digest of the data that they were trained on, None where that is not known. Raises PatchlaneError
    where neither says it, or for a dataset that they were not trained on.
    """
    given = Encoding.of(data) if data else known
    if given is None:
        raise PatchlaneError(f"{path} does not say how its text is encoded", "--data DIR, its run's dataset")
    if data is not None and known is not None:
        same = (given.tokenizer, given.fields) == (known.tokenizer, known.fields)
    else:
        same = data is None or dataset in (None, data.digest)
    if not same:
        raise PatchlaneError("--data is not of the data that the model was trained on", "--data DIR, its run's dataset")
    if given.tokenizer.vocab_size > size.vocab:
        raise PatchlaneError(
            f"the dataset's tokenizer has {given.tokenizer.vocab_size} ids, {size.name} a vocabulary of {size.vocab}",
            "--data DIR, its run's dataset",
        )
    return given


def _of_tensor_files(folder: Path) -> Opened:
    config = tensor_files.config(folder)
    size = computed(config.size)
    return Opened(
        folder,
        size,
        config.step,
        config.encoding,
        None,
        tensor_files.size_of(folder),
        tensor_files.tokenizer(folder),
        lambda: weights.brought(folder, size),
    )
