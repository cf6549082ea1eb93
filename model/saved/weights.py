"""A checkpoint's weights to safetensors, and back to a checkpoint that a run can begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from model.definition.sizes import Size
from model.saved import names, reading, tensor_files, writing
from model.saved.tensor_files import Config
from reproducers.base.errors import PatchlaneError

LIMIT = 4 * 2**30  # bytes of a file, and so of host memory that an export takes
Tell = Callable[[str], None]
Kept = tuple[torch.Size, torch.dtype]


def export(source: Path, target: Path, limit: int = LIMIT, tell: Tell = lambda line: None) -> Config:
    """Write the weights of ``source``, a checkpoint or a run's folder, to the new folder ``target``, bit for bit.

    Raises PatchlaneError where there is no checkpoint, where it is damaged, or where the folder holds weights already.
    """
    path = _checkpoint(source)
    if (error := reading.damage(path)) is not None:
        raise PatchlaneError(f"{path} is damaged: {error}", "name another checkpoint of the run")
    if (target / tensor_files.INDEX).exists():
        raise PatchlaneError(f"{target} holds weights already", "name a new folder")
    kept, said = reading.shapes(path), reading.progress(path)
    groups = [*_groups(kept, limit)]
    target.mkdir(parents=True, exist_ok=True)
    files = dict[str, str]()
    for number, group in enumerate(groups, 1):
        file = tensor_files.file_name(number, len(groups))
        tensors = dict(_named(reading.read(path, group)))
        tensor_files.write(target / file, tensors)
        files |= dict.fromkeys(tensors, file)
        tell(f"{file}: {len(tensors)} tensors")
    config = Config(size=Size.model_validate(said["size"]), step=said["step"])
    tensor_files.close(target, config, files, sum(map(_bytes, kept.values())))
    return config


def bring(source: Path, run: Path) -> Path:
    """The weights of a folder of safetensors as step 0 of the new run ``run``; the checkpoint.

    Raises PatchlaneError where the run has checkpoints already, or a file is not whole.
    """
    checkpoints = run / "checkpoints"
    if reading.complete(checkpoints):
        raise PatchlaneError(f"{run} has checkpoints already", "name a new run's folder")
    config, tensors, experts = tensor_files.config(source), dict[str, Tensor](), dict[str, dict[int, Tensor]]()
    for name, tensor in tensor_files.tensors(source):
        key, number = names.imported(name)
        if number is None:
            tensors[key] = tensor
        else:
            experts.setdefault(key, {})[number] = tensor
    for key, parts in experts.items():
        if [*sorted(parts)] != [*range(len(parts))]:
            raise PatchlaneError(f"{source}: experts of {key} are missing", "export the weights again")
        tensors[key] = torch.stack([parts[number] for number in range(len(parts))])
    progress = {"step": 0, "size": config.size.model_dump(mode="json"), "weights_only": True}
    return writing.write(checkpoints / reading.name(0), tensors, progress)


def _checkpoint(source: Path) -> Path:
    if (source / "metadata.json").is_file():
        return source
    found = reading.complete(source / "checkpoints")
    if not found:
        raise PatchlaneError(f"{source} is no checkpoint, and no run with one", "name RUN or RUN/checkpoints/step_N")
    return found[-1]


def _groups(kept: dict[str, Kept], limit: int) -> Iterator[dict[str, Kept]]:
    """The tensors in their order, in groups of no more than ``limit`` bytes where one tensor alone is not more."""
    group, size = dict[str, Kept](), 0
    for key, one in kept.items():
        if group and size + _bytes(one) > limit:
            yield group
            group, size = {}, 0
        group[key] = one
        size += _bytes(one)
    if group:
        yield group


def _bytes(one: Kept) -> int:
    shape, dtype = one
    count: int = shape.numel()
    size: int = dtype.itemsize
    return count * size


def _named(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for key, tensor in tensors.items():
        name = names.exported(key)
        if names.stacked(name):
            yield from ((names.of_expert(name, number), one.clone()) for number, one in enumerate(tensor))
        else:
            yield name, tensor
