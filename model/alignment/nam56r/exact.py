"""What the formulas give of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from model.alignment.nam56r.formulas import whole
from model.alignment.nam56r.formulas.parts import Said
from model.alignment.nam56r.packed import Packed
from model.families.nam56r import Size

OF_KEYS = (".scores", ".chosen", ".taken")  # [S, S]
COEFFICIENTS = {"mtp": "mtp_loss_coeff", "index": "indexer_loss_coeff", "aux": "aux_loss_coeff"}


def exact(size: Size, floor: float, kept: Mapping[str, Tensor], packed: Packed, taken: Mapping[str, Tensor]) -> Said:
    """What the formulas give: of the row what ``whole.document`` does, of keys [T, T], ``losses``, and gradients of
    their sum as they are trained, {a checkpoint's key: gradient, None where there is none}."""
    w = {key: t.double().requires_grad_(not key.endswith("expert_bias")) for key, t in kept.items()}
    documents = packed.documents(taken)
    said = [whole.document(own, w, size, floor) for own in documents]
    found = whole.losses(said, [own.tokens for own in documents], size)
    total = found["lm"] + sum(size.coefficients[name] * found[key] for key, name in COEFFICIENTS.items())
    learned = {key: t for key, t in w.items() if t.requires_grad}
    gradients = torch.autograd.grad(total, list(learned.values()), allow_unused=True)
    names = dict.fromkeys(name for each in said for name in each)
    return {
        **{name: _joined([each[name] for each in said if name in each], name.endswith(OF_KEYS)) for name in names},
        "losses": found | {"total": total},
        "gradients": dict(zip(learned, gradients, strict=True)),
    }


def _joined(parts: list[Any], of_keys: bool) -> Any:
    """The documents' values as the row's; keys of other documents are not seen."""
    if not isinstance(parts[0], Tensor):
        return [one for part in parts for one in part]
    parts = [part.detach() for part in parts]
    if not of_keys:
        return torch.cat(parts) if parts[0].dim() else torch.stack(parts)
    count, first = sum(map(len, parts)), 0
    found = torch.full((count, count), -torch.inf if parts[0].is_floating_point() else False, dtype=parts[0].dtype)
    for part in parts:
        own = slice(first, first + len(part))
        found[own, own], first = part, own.stop
    return found
