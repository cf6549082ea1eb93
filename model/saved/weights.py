"""A checkpoint's weights to safetensors, and back to a checkpoint that a run can begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from model.definition import parameters
from model.families.family import Family
from model.families.sizes import recorded
from model.saved import reading, tensor_files
from model.saved.names import Names
from model.saved.tensor_files import Config
from reproducers.base.errors import PatchlaneError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Kept = tuple[torch.Size, torch.dtype]
LIMIT = 4 * 2**30  # bytes of a file, and so of host memory that an export takes
EARLIER = "python -m model.weights export RUN/checkpoints/step_N NEW_DIR, with an earlier checkpoint"
Tell = Callable[[str], None]


def export(source: Path, target: Path, limit: int = LIMIT, tell: Tell = lambda line: None) -> Config:
    """Write the weights of ``source``, a checkpoint or a run's folder, to the new folder ``target``, bit for bit.

    Raises PatchlaneError where there is no checkpoint, where it is damaged, or where the folder holds weights already.
    """
    path = reading.checkpoint(source)
    tensor_files.require()
    if (error := reading.damage(path)) is not None:
        raise PatchlaneError(f"{path} is damaged: {error}", "name another checkpoint of the run")
    if (target / tensor_files.INDEX).exists():
        raise PatchlaneError(f"{target} holds weights already", "name a new folder")
    kept, said = reading.shapes(path), reading.progress(path)
    size = recorded(said["size"])
    together = [*groups(kept, limit)]
    target.mkdir(parents=True, exist_ok=True)
    files = dict[str, str]()
    for number, group in enumerate(together, 1):
        file = tensor_files.file_name(number, len(together))
        tensors = dict(_named(reading.read(path, group), Names(size)))
        tensor_files.write(target / file, tensors)
        files |= dict.fromkeys(tensors, file)
        tell(f"{file}: {len(tensors)} tensors")
    config = Config(
        size=size,
        step=said["step"],
        encoding=said.get("encoding"),
        sequence=said.get("loader", {}).get("sequence_length"),
        recipe=said.get("hyperparameters"),
    )
    tensor_files.close(target, config, files, sum(map(size_of, kept.values())))
    return config


def bring(source: Path, run: Path) -> Path:
    """The weights of a folder of safetensors as step 0 of the new run ``run``; the checkpoint.

    Raises PatchlaneError where the run has checkpoints already, or the weights are not those of their size.
    """
    from model.saved import writing

    checkpoints = run / "checkpoints"
    if reading.complete(checkpoints):
        raise PatchlaneError(f"{run} has checkpoints already", "name a new run's folder")
    config = tensor_files.config(source)
    tensors = dict(brought(source, config.size))
    progress = {"step": 0, "size": config.size.model_dump(mode="json"), "weights_only": True}
    if config.encoding is not None:
        progress["encoding"] = config.encoding.model_dump(mode="json")
    return writing.write(checkpoints / reading.name(0), tensors, progress)


def brought(source: Path, size: Family) -> Iterator[tuple[str, Tensor]]:
    """(a checkpoint's key, tensor) of a folder of safetensors, a layer's experts as one as soon as all have been read.

    Raises PatchlaneError where a file is not whole, and for a tensor that ``size`` does not have, that it has in
    another shape, that is not finite or that is missing.
    """
    import torch

    wanted, given, names = parameters.shapes(size), set[str](), Names(size)
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensor_files.tensors(source):
        key, number = names.imported(name)
        if key not in wanted or (number is not None and number >= wanted[key][0]):
            raise PatchlaneError(f"{source}: {size.name} has no tensor {name}", tensor_files.AGAIN)
        shape = wanted[key] if number is None else wanted[key][1:]
        if tensor.shape != shape:
            said = f"{name} has shape {[*tensor.shape]}, {size.name} wants {[*shape]}"
            raise PatchlaneError(f"{source}: {said}", tensor_files.AGAIN)
        if not tensor.isfinite().all():
            raise PatchlaneError(f"{source}: {name} is not finite", EARLIER)
        if number is not None:
            parts = experts.setdefault(key, {})
            parts[number] = tensor
            if len(parts) < wanted[key][0]:
                continue
            tensor = torch.stack([parts[number] for number in sorted(experts.pop(key))])
        given.add(key)
        yield key, tensor
    if missing := sorted(wanted.keys() - given):
        raise PatchlaneError(
            f"{source}: {names.exported(missing[0])} is missing, or one of its experts", tensor_files.AGAIN
        )


def groups(kept: dict[str, Kept], limit: int) -> Iterator[dict[str, Kept]]:
    """The tensors in their order, in groups of no more than ``limit`` bytes where one tensor alone is not more."""
    group: dict[str, Kept] = {}
    size = 0
    for key, one in kept.items():
        if group and size + size_of(one) > limit:
            yield group
            group, size = {}, 0
        group[key] = one
        size += size_of(one)
    if group:
        yield group


def size_of(one: Kept) -> int:
    """Bytes of a tensor."""
    shape, dtype = one
    count: int = shape.numel()
    size: int = dtype.itemsize
    return count * size


def _named(tensors: dict[str, Tensor], names: Names) -> Iterator[tuple[str, Tensor]]:
    for key, tensor in tensors.items():
        name = names.exported(key)
        if names.stacked(name):
            yield from ((names.of_expert(name, number), one.clone()) for number, one in enumerate(tensor))
        else:
            yield name, tensor
