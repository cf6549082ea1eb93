"""A folder of safetensors: weights in files of a few GB, an index, and ``config.json``, as Hugging Face lays it out.

Of an architecture with a public model ``config.json`` is the public model's, and what it cannot say lies in a file
beside it, which an export has and other programs' folders have not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from model.data.source.tokenizers import FILE
from model.data.stored.encoding import Encoding
from model.families import deepseek_v4, deepseek_v4_config
from model.families.nam56r import Size
from model.saved import hub
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import as_usual, file_sha256, write_atomic
from patchlane.base.optional import load

if TYPE_CHECKING:
    from torch import Tensor

INDEX, CONFIG, BESIDE = "model.safetensors.index.json", "config.json", "patchlane.json"
SINGLE = "model.safetensors"  # transformers' only file, without an index, of weights that need no more
FAULTS = 3  # of a config that are named
AGAIN = "python -m model.weights export RUN NEW_DIR, with the run that they are of, or name another folder"


class Origin(BaseModel):
    """Where weights come from. ``step``: updates of the run, 0 where unknown. ``encoding``: how the text was encoded
    that the run trained on, ``sequence``: the tokens of its rows, ``recipe``: its hyperparameters when it saved. Each
    is None where it did not say."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int = 0
    encoding: Encoding | None = None
    sequence: int | None = None
    recipe: dict[str, Any] | None = None


class Config(Origin):
    """What the weights are of."""

    model_type: str = "nam56r"
    size: Size


class PublicConfig(Origin):
    """What the weights are of, of an architecture with a public model."""

    size: deepseek_v4.Size


class Index(BaseModel):
    """Hugging Face's index: {tensor: its file}. ``metadata`` is free: others read ``total_size`` of it and leave
    ``sha256`` alone, {file: digest} of config and tensors."""

    metadata: dict[str, Any] = {}
    weight_map: dict[str, str]

    @property
    def digests(self) -> dict[str, str]:
        found = self.metadata.get("sha256")
        return found if isinstance(found, dict) else {}


def file_name(number: int, of: int) -> str:
    """Hugging Face's name of file ``number``, from 1 on."""
    return f"model-{number:05d}-of-{of:05d}.safetensors"


def require() -> None:
    """Raise CannotTestHere where safetensors is not installed."""
    _library()


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """One file of tensors in host memory. Raises PatchlaneError where it cannot be written."""
    files, failures = _library()
    with writing(path, failures):
        files.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
        as_usual(path)  # safetensors 0.8 leaves the mode of its temporary file


@contextlib.contextmanager
def writing(path: Path, *failures: type[Exception]) -> Iterator[None]:
    """Raise PatchlaneError where ``path`` cannot be written, an OSError or one of ``failures``."""
    known: tuple[type[Exception], ...] = (OSError, *failures)
    try:
        yield
    except known as error:
        raise PatchlaneError(
            f"{path} cannot be written: {error}", f"df -h {path.parent}, and name a folder with room that you may write"
        ) from error


def described(config: Config | PublicConfig, dtype: str, tokenizer: bytes | None = None) -> dict[str, bytes]:
    """{file: content} of all that says what the weights are of. ``dtype``: of most tensors, which a public config says
    ("bfloat16"). ``tokenizer``: the content of the file of one that is not bytes. Raises PatchlaneError for a size that
    the public model cannot have."""
    own, beside = (
        (config.model_dump_json(indent=2) + "\n").encode(),
        hub.text(config.encoding, tokenizer, config.size.vocab),
    )
    if not isinstance(config, PublicConfig):
        said = config.model_dump(mode="json") | hub.fields(config.size, config.encoding, config.sequence, dtype)
        return {CONFIG: (json.dumps(said, indent=2) + "\n").encode(), **hub.modelling(), **beside}
    eos = config.encoding.tokenizer.eod if config.encoding else None
    public = deepseek_v4_config.written(config.size, dtype, eos)
    return {CONFIG: (json.dumps(public, indent=2) + "\n").encode(), BESIDE: own, **beside}


def close(folder: Path, described: dict[str, bytes], files: dict[str, str], size: int) -> None:
    """Write ``described`` and then the index of {tensor: file}: with it the folder is whole. ``size``: bytes."""
    for name, content in described.items():
        write_atomic(folder / name, content)
    digests = {name: file_sha256(folder / name) for name in (*described, *sorted(set(files.values())))}
    known = Index(metadata={"total_size": size, "sha256": digests}, weight_map=files)
    write_atomic(folder / INDEX, (json.dumps(known.model_dump(), indent=2, sort_keys=True) + "\n").encode())


def config(folder: Path) -> Config | PublicConfig:
    """The folder's config. Raises PatchlaneError where it is none of NAM56R or DeepSeek-V4, where its tensors are
    quantised, and where it is not what was written."""
    try:
        content = (folder / CONFIG).read_bytes()
        said = json.loads(content)
        public = isinstance(said, dict) and said.get("model_type") == deepseek_v4.MODEL_TYPE
        found = _public(folder, said) if public else Config.model_validate_json(content)
    except (OSError, ValueError) as error:
        raise _refused(folder / CONFIG, error) from error
    _compare(folder, CONFIG, index(folder))
    return found


def _public(folder: Path, said: dict[str, Any]) -> PublicConfig:
    """Of a public model's ``config.json``, and of what an export wrote beside it."""
    size = deepseek_v4_config.read(said, f"{folder / CONFIG}")
    if (field := deepseek_v4_config.quantised(said)) is not None:
        raise PatchlaneError(
            f"{folder / CONFIG}: {field} says that tensors are quantised", "name a folder of them in bf16 or fp32"
        )
    if not (folder / BESIDE).is_file():
        if size.name not in deepseek_v4.SIZES:
            raise PatchlaneError(
                f"{folder / CONFIG}: no size here has its dimensions", "add it to model/families/deepseek_v4.py"
            )
        return PublicConfig(size=size)
    _compare(folder, BESIDE, index(folder))
    try:
        found = PublicConfig.model_validate_json((folder / BESIDE).read_bytes())
    except ValidationError as error:
        raise _refused(folder / BESIDE, error) from error
    if deepseek_v4_config.as_public(found.size) != deepseek_v4_config.as_public(size):
        raise PatchlaneError(f"{folder / BESIDE} is of other dimensions than {CONFIG}", AGAIN)
    return found


def tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of all in the folder, a file at a time. Raises PatchlaneError where one is not whole, or not what
    was written."""
    files, failures = _library()
    known = index(folder)
    for file in sorted(set(known.weight_map.values())):
        try:
            _compare(folder, file, known)
            held: dict[str, Tensor] = files.load_file(folder / Path(file).name)
        except (OSError, failures) as error:
            raise _refused(folder / file, error) from error
        names = {name for name, place in known.weight_map.items() if place == file}
        if missing := sorted(names - held.keys()):
            raise _refused(folder / file, ValueError(f"{missing[0]} is not in it"))
        yield from ((name, held[name]) for name in sorted(names))


def tokenizer(folder: Path) -> bytes | None:
    """The content of the tokenizer's file in the folder, None where there is none."""
    path = folder / FILE
    return path.read_bytes() if path.is_file() else None


def size_of(folder: Path) -> int:
    """Bytes of all tensors in the folder, as its index has them; 0 where it has not."""
    return int(index(folder).metadata.get("total_size", 0))


def index(folder: Path) -> Index:
    """The folder's index, or what it would be of one file. Raises PatchlaneError where there is none."""
    try:
        if not (folder / INDEX).exists() and (folder / SINGLE).is_file():
            return Index(weight_map=dict.fromkeys(_names(folder / SINGLE), SINGLE))
        return Index.model_validate_json((folder / INDEX).read_bytes())
    except (OSError, ValidationError) as error:
        raise _refused(folder / INDEX, error) from error


def _compare(folder: Path, file: str, known: Index) -> None:
    """Raise PatchlaneError where the index has a digest of ``file`` and the file another, OSError for no such file."""
    if file in known.digests and known.digests[file] != file_sha256(folder / file):
        raise PatchlaneError(f"{folder / file} is not what was written", AGAIN)


def _names(file: Path) -> list[str]:
    """Of the tensors in a file. Raises PatchlaneError where it is none."""
    library, failures = load("safetensors", "safetensors"), _library()[1]
    try:
        with library.safe_open(file, "pt") as opened:
            return list(opened.keys())
    except failures as error:
        raise _refused(file, error) from error


def _library() -> tuple[Any, Any]:
    """(safetensors for torch, what it raises)."""
    return load("safetensors.torch", "safetensors"), load("safetensors", "safetensors").SafetensorError


def _refused(path: Path, error: Exception) -> PatchlaneError:
    if isinstance(error, ValidationError):
        faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
        said = "not of a known model: " + "; ".join(": ".join(filter(None, fault)) for fault in faults[:FAULTS])
        said += f"; and {len(faults) - FAULTS} more" if len(faults) > FAULTS else ""
    else:
        said = f"{error.strerror}" if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
    return PatchlaneError(
        f"{path}: {said}", "name a folder that python -m model.weights export made, or transformers' save_pretrained"
    )
