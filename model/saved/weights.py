"""A checkpoint's weights to safetensors, and back to a checkpoint that a run can begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from model.data.source import tokenizers
from model.definition import parameters
from model.families.family import Family
from model.families.sizes import of_record
from model.kinds.kind import BF16
from model.saved import layouts, reading, tensor_files
from model.saved.layouts import Layout
from model.saved.public import Place, joined
from model.saved.tensor_files import Config, PublicConfig
from patchlane.base.errors import PatchlaneError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Kept = tuple[torch.Size, torch.dtype]
LIMIT = 4 * 2**30  # bytes of a file, and so of host memory that an export takes
EARLIER = "python -m model.weights export RUN/checkpoints/step_N NEW_DIR, with an earlier checkpoint"
Tell = Callable[[str], None]


def export(
    source: Path, target: Path, limit: int = LIMIT, tell: Tell = lambda line: None, tokenizer: Path | None = None
) -> Config | PublicConfig:
    """Write the weights of ``source``, a checkpoint or a run's folder, to the new folder ``target``, bit for bit.
    ``tokenizer``: the file of one that is not bytes, where the checkpoint does not have it.

    Raises PatchlaneError where there is no checkpoint, where it is damaged, or where the folder holds weights already,
    for a size that its public model cannot have, and for another tokenizer.
    """
    path = reading.checkpoint(source)
    tensor_files.require()
    if (error := reading.damage(path)) is not None:
        raise PatchlaneError(f"{path} is damaged: {error}", "name another checkpoint of the run")
    if (target / tensor_files.INDEX).exists():
        raise PatchlaneError(f"{target} holds weights already", "name a new folder")
    kept, said = reading.shapes(path), reading.progress(path)
    size = of_record(said["size"])
    config = (PublicConfig if size.has_public else Config).model_validate(
        {
            "size": said["size"],
            "step": said["step"],
            "encoding": said.get("encoding"),
            "sequence": said.get("loader", {}).get("sequence_length"),
            "recipe": said.get("hyperparameters"),
        }
    )
    content = reading.tokenizer(said) if tokenizer is None else tokenizers.read(tokenizer)
    if config.encoding is not None and (tokenizer or content):
        config.encoding.open(tokenizer, content)
    narrow = any(dtype.itemsize == BF16 for _, dtype in kept.values())
    described = tensor_files.described(config, "bfloat16" if narrow else "float32", content)
    together, layout = [*groups(kept, limit)], layouts.written(size)
    with tensor_files.writing(target):
        target.mkdir(parents=True, exist_ok=True)
    files, total = dict[str, str](), 0
    for number, group in enumerate(together, 1):
        file = tensor_files.file_name(number, len(together))
        tensors = _named(reading.read(path, group), layout)
        tensor_files.write(target / file, tensors)
        files |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
        tell(f"{file}: {len(tensors)} tensors")
    with tensor_files.writing(target):
        tensor_files.close(target, described, files, total)
    return config


def bring(source: Path, run: Path) -> Path:
    """The weights of a folder of safetensors as step 0 of the new run ``run``; the checkpoint. What the public model
    lacks, and the folder too, the run draws as a new one does.

    Raises PatchlaneError where the run has checkpoints already, or the weights are not those of their size.
    """
    from model.saved import writing

    checkpoints = run / "checkpoints"
    if reading.complete(checkpoints):
        raise PatchlaneError(f"{run} has checkpoints already", "name a new run's folder")
    config = tensor_files.config(source)
    tensors = dict(brought(source, config.size))
    progress = {"step": 0, "size": config.size.model_dump(mode="json"), "weights_only": True}
    if drawn := sorted(parameters.shapes(config.size).keys() - tensors.keys()):
        progress["drawn"] = drawn
    if config.encoding is not None:
        progress["encoding"] = config.encoding.model_dump(mode="json")
        if config.encoding.tokenizer.kind == "hf" and (content := tensor_files.tokenizer(source)) is not None:
            config.encoding.open(kept=content)
            progress["tokenizer"] = content.decode()
    return writing.write(checkpoints / reading.name(0), tensors, progress)


def brought(source: Path, size: Family) -> Iterator[tuple[str, Tensor]]:
    """(a checkpoint's key, tensor) of a folder of safetensors, each as soon as all of its parts have been read.

    Raises PatchlaneError where a file is not whole, and for a tensor that ``size`` does not have, that it has in
    another shape or dtype, that is not finite, whose values are no experts of a token or that is missing.
    """
    layout = layouts.of(size, tensor_files.index(source).weight_map)
    shapes, parts = parameters.shapes(size), Counter(place.key for place in layout.values())
    held: dict[str, dict[Place, Tensor]] = {}
    given = set[str]()
    for name, tensor in tensor_files.tensors(source):
        if (place := layout.get(name)) is None:
            raise PatchlaneError(f"{source}: {size.name} has no tensor {name}", tensor_files.AGAIN)
        shape = place.shape(shapes[place.key])
        if tensor.shape != shape:
            said = f"{name} has shape {[*tensor.shape]}, {size.name} wants {[*shape]}"
            raise PatchlaneError(f"{source}: {said}", tensor_files.AGAIN)
        if refused := _refused(size, place.key, tensor):
            raise PatchlaneError(f"{source}: {name} {refused}", tensor_files.AGAIN)
        if not tensor.isfinite().all():
            raise PatchlaneError(f"{source}: {name} is not finite", EARLIER)
        given.add(name)
        held.setdefault(place.key, {})[place] = tensor if tensor.is_floating_point() else tensor.int()
        if len(held[place.key]) == parts[place.key]:
            yield place.key, joined(held.pop(place.key))
    lacking = {name for name, place in layout.items() if layouts.may_lack(size, place)}
    if missing := layout.keys() - given - (lacking if not lacking & given else set()):
        raise PatchlaneError(f"{source}: {min(missing)} is missing", tensor_files.AGAIN)


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


def _named(tensors: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """{name in safetensors: tensor} of some of a checkpoint's: a part is a copy, as a file takes no views."""
    found: dict[str, Tensor] = {}
    for name, place in layout.items():
        if (whole := tensors.get(place.key)) is not None:
            part = whole if place == Place(place.key) else place.of(whole).clone()
            found[name] = part if part.is_floating_point() else part.long()  # as transformers has tables
    return found


def _refused(size: Family, key: str, tensor: Tensor) -> str:
    """Why values of this dtype, or these experts, cannot be what a checkpoint has under ``key``; "" where they can."""
    import torch

    if any(key.endswith(name) for kind in size.every for name in kind.tables):
        wanted = [torch.int32, torch.int64]
    else:
        wanted = [torch.float32] if any(part in key for part in size.fp32) else [torch.bfloat16, torch.float32]
    if tensor.dtype not in wanted:
        return f"is {tensor.dtype}, {size.name} wants {' or '.join(map(str, wanted))}"
    if tensor.is_floating_point():
        return ""
    rows = tensor.sort(dim=1).values
    if rows.min() < 0 or rows.max() >= size.experts_of_layer:
        return f"names experts of {rows.min()} to {rows.max()}, {size.name} has {size.experts_of_layer}"
    twice = bool((rows[:, 1:] == rows[:, :-1]).any())
    return "names an expert twice for a token, which the model cannot choose twice" if twice else ""
