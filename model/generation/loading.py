"""A network from weights wherever they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from model.exported.dims import Dims
from model.exported.network import Network, fp32
from model.families.nam56r import Size
from model.saved import hub, layouts
from model.saved.opened import Opened
from model.saved.public import Place
from patchlane.base.errors import PatchlaneError

NOT_READ = "mtp.", "_extra_state"  # how keys begin, or end, of what only training uses


def network(found: Opened, bf16: bool | None, advance: Callable[[int], None] = lambda read: None) -> Network:
    """The model, on a GPU where there is one; ``bf16``: None for the dtypes that are kept. ``advance`` is called with
    the bytes of each tensor."""
    dtype = None if bf16 is None else torch.bfloat16 if bf16 else torch.float32
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def tensors() -> Iterable[tuple[str, Tensor]]:
        for key, tensor in found.tensors():
            yield key, tensor
            advance(tensor.nbytes)

    return filled(found.size, tensors(), dtype, device)


def filled(
    size: Size, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None, device: torch.device
) -> Network:
    """A network with these tensors, by a checkpoint's keys. ``dtype``: of all that training does not keep in fp32; None
    leaves what is there. Raises PatchlaneError for tensors that are not the size's."""
    with torch.device("meta"):
        made = Network(Dims.of(hub.network(size)))
    places: dict[str, list[tuple[str, Place]]] = {}
    for name, place in layouts.written(size).items():
        places.setdefault(place.key, []).append((name, place))
    state = dict[str, Tensor]()
    for key, tensor in tensors:
        if key.startswith(NOT_READ[0]) or key.endswith(NOT_READ[1]):
            continue
        named = places.get(key, [(key, Place(key))])
        kept = dtype == torch.bfloat16 and fp32(named[0][0])
        moved = tensor.to(device=device, dtype=None if kept else dtype)
        state |= {name: place.of(moved) for name, place in named}
    try:
        made.load_state_dict(state, assign=True)
    except RuntimeError as error:
        said = str(error).splitlines()
        raise PatchlaneError(
            f"the weights are not those of {size.name}: {' '.join(said[1:2]).strip()}", "name another checkpoint"
        ) from error
    made.requires_grad_(False)
    return made
