"""How weights lie in safetensors: each tensor's name there with its place in a checkpoint, one to one.

Of an architecture without a public model that is by the names of ``model.saved.names``. Of one with a public model an
export has the public model's own names (transformers' ``state_dict``); what it lacks, MTP, lies in the same files under
``mtp.``, as in those of the model's makers, which transformers passes over. Had MTP the makers' names altogether, then
transformers, which converts by patterns and on saving undoes those that it used, would give other tensors half of them.
An import takes two more: all by the makers' names, and what transformers' ``save_pretrained`` makes of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from model.definition import parameters
from model.families.family import Family
from model.saved.names import Names
from model.saved.public import Place, once, places

Layout = dict[str, Place]
MTP = "mtp."  # what begins the keys of all depths, and their names in the makers' files


def written(size: Family) -> Layout:
    """Of an export. Raises PatchlaneError, as all of these, where two tensors would have one name."""
    return _of_public(size) if size.has_public else _own(size)


def of(size: Family, names: Iterable[str]) -> Layout:
    """Of files that have tensors of these names: of those that an import takes the one that has the most of them."""
    known, given = [written(size)], set(names)
    if size.has_public:
        known.append(_of_makers(size))
        known += [_resaved(layout, size.resaved) for layout in known]
    return max(known, key=lambda layout: len(layout.keys() & given))


def may_lack(size: Family, place: Place) -> bool:
    """Whether files may be without it: the public model has no MTP."""
    return size.has_public and _of_mtp(place)


def _own(size: Family) -> Layout:
    """Each expert by its number."""
    names, found = Names(size), list[tuple[str, Place]]()
    for key, shape in parameters.shapes(size).items():
        name = names.exported(key)
        if names.stacked(name):
            found += [(names.of_expert(name, number), Place(key, expert=number)) for number in range(shape[0])]
        else:
            found.append((name, Place(key)))
    return once(found)


def _of_public(size: Family) -> Layout:
    """By the public model's names, MTP by its own under the makers' prefix."""
    found = places(size).items()
    return once((name.removeprefix("model.") if _of_mtp(place) else name, place) for name, place in found)


def _of_makers(size: Family) -> Layout:
    """All by the makers' names: each expert by its number."""
    names, found, kept = Names(size), list[tuple[str, Place]](), parameters.shapes(size)
    cuts = {whole: parts for kind in size.every for whole, parts in kind.makers_experts.items()}
    for name, place in places(size).items():
        before, _, last = (theirs := names.of_makers(name)).rpartition(".")
        if last not in cuts:
            found.append((theirs, place))
            continue
        for expert in range(kept[place.key][0]):
            parts = enumerate(cuts[last])
            found += [(f"{before}.{expert}.{one}", Place(place.key, at, len(cuts[last]), expert)) for at, one in parts]
    return once(found)


def _resaved(layout: Layout, patterns: Iterable[tuple[str, str]]) -> Layout:
    """What transformers' ``save_pretrained`` writes by default of a model that has these names, or came of these."""
    found = list[tuple[str, Place]]()
    for name, place in layout.items():
        for pattern, put in () if _of_mtp(place) else patterns:
            name = re.sub(pattern, put, name)
        found.append((name, place))
    return once(found)


def _of_mtp(place: Place) -> bool:
    return place.key.startswith(MTP)
