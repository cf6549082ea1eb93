"""The small model that the tests of the whole run, with every layer kind; for the worker process only.

Documents: one longer than the sparse layers' choice of keys, one of a single token, an empty one as padding makes them.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from model.families.sizes import SIZES
from model.kinds import catalogue
from model.kinds.run import Run

CUTS = (0, 40, 41, 41, 70, 96)
LONGEST = 40
TOKENS = CUTS[-1]
TOPK = 8
# With 16 heads no score is 0 because every head's ReLU is shut: ties, of which the top-k takes any.
INDEXER = SIZES["nam56r_tiny"].indexer.model_copy(update={"topk": TOPK, "heads": 16})
SIZE = SIZES["nam56r_tiny"].model_copy(update={"indexer": INDEXER, "mtp_depths": 2})
SPANS = tuple(itertools.pairwise(CUTS))


def fresh(seed: int = 0, **run: Any) -> Any:
    """A new model as training starts it."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from model.step.network import Nam56r

    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    wanted = Run(**run)
    return Nam56r(SIZE, wanted, catalogue.choose(SIZE, wanted))


@functools.cache
def model() -> Any:
    """One whose every matrix is drawn wide, so that no path into the output is too faint to be measured."""
    found = fresh()
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if parameter.dim() == 2 and name.endswith("weight"):
                lookup = "embedding" in name or name == "ngram.table.weight"
                parameter.normal_(std=1.0 if lookup else parameter.shape[1] ** -0.5)
    return found


def layer(number: int) -> Any:
    """The layer of that 1-based number."""
    return model().decoder.layers[number - 1]


def bounds() -> torch.Tensor:
    """cu_seqlens: int32 [documents + 1]."""
    return torch.tensor(CUTS, dtype=torch.int32)


def packed() -> Any:
    from model.layers.common import packed as documents

    return documents.packed(bounds(), LONGEST)


def batch(seed: int = 0) -> dict[str, Any]:
    """tokens, positions, labels and loss_mask [1, T]; fields [T] each. A document's last token has no label."""
    from model.layers.common.documents import positions

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(256, (1, TOKENS), generator=generator)
    mask = torch.ones(1, TOKENS)
    mask[0, [high - 1 for low, high in SPANS if low < high]] = 0
    classes = SIZE.structure.fields.items()
    fields = {name: torch.randint(count, (TOKENS,), generator=generator) for name, count in classes}
    place = positions(bounds(), TOKENS)[None]
    return {"tokens": tokens, "positions": place, "labels": tokens.roll(-1, 1), "loss_mask": mask, "fields": fields}


def inputs(made: dict[str, Any]) -> dict[str, Any]:
    """The part of a batch that gives logits."""
    return {name: made[name] for name in ("tokens", "positions", "fields")}


def hidden(seed: int = 0) -> torch.Tensor:
    """[T, 1, h] fp32, a leaf: what a layer may be given."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((TOKENS, 1, SIZE.hidden), generator=generator).requires_grad_()


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error norm in fp64."""
    got, want = got.detach().double(), want.detach().double()
    assert got.shape == want.shape, (got.shape, want.shape)
    return float((got - want).norm() / want.norm().clamp_min(1e-30))
