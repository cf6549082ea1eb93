"""What the training forward gives in fp64, made in a child of ``forked`` for a decoder in another process to equal.

Megatron and mamba-ssm ask for fp32 here and there. ``exact`` has them leave fp64 as it is, so that the two can be held
together to many digits; the rotary tables stay fp32 in both.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

CUTS = (0, 61, 96)  # two documents, each longer than the sparse layers' choice of keys
# Less than all tokens: of a rotary table for all of them Megatron takes positions that go on from document to document.
# Scores are of differences of positions, but fp32 tables round them otherwise.
LONGEST = 62
TOPK = 8


def size(name: str) -> Any:
    """``name`` with fewer keys chosen, and so many index heads that no score is 0: a tie, of which top-k takes any."""
    from model.families.sizes import SIZES

    indexer = SIZES[name].indexer.model_copy(update={"topk": TOPK, "heads": 16})
    return SIZES[name].model_copy(update={"indexer": indexer})


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """No fp64 tensor becomes fp32."""
    import torch

    given = torch.Tensor.float, torch.Tensor.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = [*args, *kwargs.values()]
        return self if self.dtype == torch.float64 and torch.float32 in wanted else given[1](self, *args, **kwargs)

    torch.Tensor.float, torch.Tensor.to = lambda self: to(self, torch.float32), to
    try:
        yield
    finally:
        torch.Tensor.float, torch.Tensor.to = given


def trained(of: Any) -> Any:
    """Megatron's model in fp64, with every parameter and the routers' biases away from where they start."""
    import torch

    from model.kinds import catalogue
    from model.kinds.run import Run
    from model.loop import launch
    from model.step.network import Nam56r

    run = Run()
    launch.start(launch.world(), SimpleNamespace(device="cpu"), run, seed=0)  # type: ignore[arg-type]
    found = Nam56r(of, run, catalogue.choose(of, run)).double().eval()
    generator = torch.Generator().manual_seed(0)
    for key, held in [*found.named_parameters(), *found.named_buffers()]:
        lookup = "embedding" in key or key == "ngram.table.weight"
        scale = (1.0 if lookup else held.shape[1] ** -0.5) if held.dim() == 2 and key.endswith("weight") else 0.1
        drawn = torch.randn(held.shape, generator=generator, dtype=held.dtype) * scale
        held.data = drawn if scale != 0.1 else held.data + drawn
    return found


def tensors(model: Any) -> dict[str, Any]:
    """The model's tensors by a checkpoint's keys."""
    import torch

    found: dict[str, Any] = {}
    for key, held in model.state_dict().items():
        if isinstance(held, torch.Tensor) and "tokens_per_expert" not in key:
            found.setdefault(re.sub(r"local_experts\.\d+", "experts", key), []).append(held)
    return {key: torch.stack(held) if ".experts.experts." in key else held[0] for key, held in found.items()}


def batch(of: Any) -> tuple[Any, dict[str, Any]]:
    """tokens [T] and fields [T] each."""
    import torch

    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(256, (CUTS[-1],), generator=generator)
    classes = of.structure.fields.items()
    return tokens, {name: torch.randint(count, (CUTS[-1],), generator=generator) for name, count in classes}


def reference(name: str, file: str) -> None:
    """Write to ``file``: tensors by a checkpoint's keys, tokens, fields, and logits [T, vocab] of the training forward
    over both documents packed."""
    import torch

    from model.layers.common.documents import positions
    from model.layers.common.packed import packed

    of = size(name)
    model, (tokens, fields) = trained(of), batch(of)
    bounds = torch.tensor(CUTS, dtype=torch.int32)
    place = positions(bounds, CUTS[-1])[None]
    with torch.no_grad(), exact():
        logits = model(tokens[None], place, packed(bounds, LONGEST), fields=fields)[0]
    torch.save({"tensors": tensors(model), "tokens": tokens, "fields": fields, "logits": logits}, file)
