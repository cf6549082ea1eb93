"""Names of a public model's tensors, each with its place in a checkpoint, one to one.

Where a layer of the public model is several here, as attention and experts of DeepSeek-V4, they get its number; what it
has as several tensors, and a checkpoint as one, is cut (``Kind.cuts``). A family of which it has no such layer, as
transformers has no MTP of DeepSeek-V4, keeps the names of ``model.saved.names`` there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.definition import parameters
from model.families.family import Family
from model.saved.names import Names
from reproducers.base.errors import PatchlaneError

if TYPE_CHECKING:
    from torch import Tensor
SAME = "weights of the same size and version of the public model"


@dataclass(frozen=True)
class Place:
    """Part ``part`` of ``parts`` equal ones, along the first axis, of a checkpoint's tensor ``key``."""

    key: str
    part: int = 0
    parts: int = 1


def places(size: Family) -> dict[str, Place]:
    """{the public model's name: its place} of everything that a checkpoint of the size keeps of the model.

    Raises PatchlaneError where two tensors would have one name.
    """
    names, found = Names(size), dict[str, Place]()
    cuts = {whole: parts for kind in size.every for whole, parts in kind.cuts.items()}
    for key in parameters.shapes(size):
        each = _cut(_numbered(names.exported(key), size.layers_of_public), cuts)
        for part, name in enumerate(each):
            if name in found:
                raise PatchlaneError(f"{key} and {found[name].key} are both {name}", "give kinds' names other pairs")
            found[name] = Place(key, part, len(each))
    return found


def shapes(size: Family) -> dict[str, tuple[int, ...]]:
    """{the public model's name: shape}."""
    kept = parameters.shapes(size)
    return {name: (kept[place.key][0] // place.parts, *kept[place.key][1:]) for name, place in places(size).items()}


def exported(size: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{the public model's name: tensor} of some of a checkpoint's, {key: tensor}, bit for bit; parts are views."""
    return {
        name: tensors[place.key].chunk(place.parts)[place.part]
        for name, place in places(size).items()
        if place.key in tensors
    }


def imported(size: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``exported`` back: {key: tensor} of all of the public model's names.

    Raises PatchlaneError for a name that the size does not have, for one that is missing, and for another shape.
    """
    import torch

    due = shapes(size)
    for name in sorted(tensors.keys() ^ due.keys()):
        said = f"is not one of {size.name}'s" if name in tensors else f"of {size.name} is missing"
        raise PatchlaneError(f"{name} {said}", SAME)
    for name, shape in due.items():
        if tuple(tensors[name].shape) != shape:
            raise PatchlaneError(f"{name} has shape {[*tensors[name].shape]}, {size.name} wants {[*shape]}", SAME)
    parts: dict[str, list[Tensor]] = {}
    for name, place in places(size).items():  # a tensor's parts in their order
        parts.setdefault(place.key, []).append(tensors[name])
    return {key: torch.cat(each) if len(each) > 1 else each[0] for key, each in parts.items()}


def _numbered(name: str, layers: int) -> str:
    """With the public model's number of a layer of the main stack."""
    return re.sub(r"^(model\.layers\.)(\d+)", lambda found: f"{found[1]}{int(found[2]) // layers}", name)


def _cut(name: str, cuts: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The names of a tensor's parts, itself where it has none."""
    for whole, parts in cuts.items():
        if name.endswith(f".{whole}"):
            return [name.removesuffix(whole) + part for part in parts]
    return [name]
