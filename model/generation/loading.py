"""A decoder from weights wherever they are kept."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from model.definition.sizes import Size
from model.generation.network import Decoder
from reproducers.base.errors import PatchlaneError

# parts of a checkpoint's keys that stand for modules which the decoder does without
PARTS = {".mixer.mamba.": ".mixer.", ".core_attention.indexer.": ".indexer.", ".experts.experts.": ".experts."}
TRAINED_ONLY = "mtp."  # the beginning of keys


def filled(
    size: Size, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None, device: torch.device
) -> Decoder:
    """A decoder with these tensors, by a checkpoint's keys. ``dtype``: of all that training does not keep in fp32; None
    leaves what is there. Raises PatchlaneError for tensors that are not the size's."""
    with torch.device("meta"):
        decoder = Decoder(size)
    kept = {name for name, p in decoder.named_parameters() if hasattr(p, "_keep_fp32")}
    kept |= {name for name, _ in decoder.named_buffers()}
    state = dict[str, Tensor]()
    for key, tensor in tensors:
        if key.startswith(TRAINED_ONLY):
            continue
        for part, short in PARTS.items():
            key = key.replace(part, short)
        state[key] = tensor.to(device=device, dtype=None if key in kept and dtype == torch.bfloat16 else dtype)
    try:
        decoder.load_state_dict(state, assign=True)
    except RuntimeError as error:
        said = str(error).splitlines()
        raise PatchlaneError(
            f"the weights are not those of {size.name}: {' '.join(said[1:2]).strip()}", "name another checkpoint"
        ) from error
    return decoder.requires_grad_(False)
