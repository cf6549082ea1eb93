"""A decoder from weights wherever they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from model.families.nam56r import Size
from model.generation.network import Decoder
from model.layers.common import fp32
from model.saved.opened import Opened
from patchlane.base.errors import PatchlaneError

# parts of a checkpoint's keys that stand for modules which the decoder does without
PARTS = {".mixer.mamba.": ".mixer.", ".core_attention.indexer.": ".indexer.", ".experts.experts.": ".experts."}
NOT_READ = "mtp.", "_extra_state"  # how keys begin, or end, of what only training uses


def decoder(found: Opened, bf16: bool | None, advance: Callable[[int], None] = lambda read: None) -> Decoder:
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
) -> Decoder:
    """A decoder with these tensors, by a checkpoint's keys. ``dtype``: of all that training does not keep in fp32; None
    leaves what is there. Raises PatchlaneError for tensors that are not the size's."""
    with torch.device("meta"):
        made = Decoder(size)
    kept = {name for name, p in made.named_parameters() if fp32.kept(p)}
    kept |= {name for name, _ in made.named_buffers()}
    state = dict[str, Tensor]()
    for key, tensor in tensors:
        if key.startswith(NOT_READ[0]) or key.endswith(NOT_READ[1]):
            continue
        for part, short in PARTS.items():
            key = key.replace(part, short)
        state[key] = tensor.to(device=device, dtype=None if key in kept and dtype == torch.bfloat16 else dtype)
    try:
        made.load_state_dict(state, assign=True)
    except RuntimeError as error:
        said = str(error).splitlines()
        raise PatchlaneError(
            f"the weights are not those of {size.name}: {' '.join(said[1:2]).strip()}", "name another checkpoint"
        ) from error
    made.requires_grad_(False)
    return made
