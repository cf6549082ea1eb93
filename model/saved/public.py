"""Names of a public model's tensors, each with its place in a checkpoint, one to one.

Where a layer of the public model is several here, as attention and experts of DeepSeek-V4, they get its number; what it
has as several tensors, and a checkpoint as one, is cut (``Kind.cuts``). A family of which it has no such layer, as
transformers has no MTP of DeepSeek-V4, keeps the names of ``model.saved.names`` there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.definition import parameters
from model.families.family import Family
from model.saved.names import Names
from patchlane.base.errors import PatchlaneError

if TYPE_CHECKING:
    from torch import Tensor
SAME = "weights of the same size and version of the public model"


@dataclass(frozen=True)
class Place:
    """Part ``part`` of ``parts`` equal ones, along the first axis, of a checkpoint's tensor ``key``; or of expert
    number ``expert`` of those that the tensor holds."""

    key: str
    part: int = 0
    parts: int = 1
    expert: int | None = None

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Of the part, where the checkpoint's tensor has the shape ``whole``."""
        first, *rest = whole if self.expert is None else whole[1:]
        return (first // self.parts, *rest)

    def of(self, whole: Tensor) -> Tensor:
        """The part, a view."""
        return (whole if self.expert is None else whole[self.expert]).chunk(self.parts)[self.part]


def joined(parts: Mapping[Place, Tensor]) -> Tensor:
    """The checkpoint's tensor of all its parts, in any order."""
    import torch

    experts: dict[int, list[Tensor]] = {}
    for place in sorted(parts, key=lambda place: (place.expert or 0, place.part)):
        experts.setdefault(-1 if place.expert is None else place.expert, []).append(parts[place])
    whole = [torch.cat(each) if len(each) > 1 else each[0] for each in experts.values()]
    return whole[0] if -1 in experts else torch.stack(whole)


def places(size: Family) -> dict[str, Place]:
    """{the public model's name: its place} of everything that a checkpoint of the size keeps of the model.

    Raises PatchlaneError where two tensors would have one name.
    """
    names, found = Names(size), list[tuple[str, Place]]()
    cuts = {whole: parts for kind in size.every for whole, parts in kind.cuts.items()}
    for key in parameters.shapes(size):
        each = _cut(_numbered(names.exported(key), size.layers_of_public), cuts)
        found += [(name, Place(key, part, len(each))) for part, name in enumerate(each)]
    return once(found)


def once(found: Iterable[tuple[str, Place]]) -> dict[str, Place]:
    """{name: place}. Raises PatchlaneError where two places have one name."""
    table: dict[str, Place] = {}
    for name, place in found:
        if (other := table.setdefault(name, place)) is not place:
            raise PatchlaneError(f"{place.key} and {other.key} are both {name}", "give kinds' names other pairs")
    return table


def shapes(size: Family) -> dict[str, tuple[int, ...]]:
    """{the public model's name: shape}."""
    kept = parameters.shapes(size)
    return {name: place.shape(kept[place.key]) for name, place in places(size).items()}


def exported(size: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{the public model's name: tensor} of some of a checkpoint's, {key: tensor}, bit for bit; parts are views."""
    return {name: place.of(tensors[place.key]) for name, place in places(size).items() if place.key in tensors}


def imported(size: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``exported`` back: {key: tensor} of all of the public model's names.

    Raises PatchlaneError for a name that the size does not have, for one that is missing, and for another shape.
    """
    due = shapes(size)
    for name in sorted(tensors.keys() ^ due.keys()):
        said = f"is not one of {size.name}'s" if name in tensors else f"of {size.name} is missing"
        raise PatchlaneError(f"{name} {said}", SAME)
    for name, shape in due.items():
        if tuple(tensors[name].shape) != shape:
            raise PatchlaneError(f"{name} has shape {[*tensors[name].shape]}, {size.name} wants {[*shape]}", SAME)
    parts: dict[str, dict[Place, Tensor]] = {}
    for name, place in places(size).items():
        parts.setdefault(place.key, {})[place] = tensors[name]
    return {key: joined(each) for key, each in parts.items()}


def _numbered(name: str, layers: int) -> str:
    """With the public model's number of a layer of the main stack."""
    return re.sub(r"^(model\.layers\.)(\d+)", lambda found: f"{found[1]}{int(found[2]) // layers}", name)


def _cut(name: str, cuts: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The names of a tensor's parts, itself where it has none."""
    for whole, parts in cuts.items():
        if name.endswith(f".{whole}"):
            return [name.removesuffix(whole) + part for part in parts]
    return [name]
