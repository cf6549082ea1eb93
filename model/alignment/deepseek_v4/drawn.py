"""One draw of weights and tokens: both models, the formulas, and the rows of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from model.alignment.comparison import FORMULAS, Judge, Row
from model.alignment.deepseek_v4 import dims, formulas, objective, public
from model.families.deepseek_v4 import Size
from model.kinds.path import Choice
from model.kinds.run import Run
from model.saved import public as names
from patchlane.base.errors import PatchlaneError

OF_MTP = ("entered", "left", "hidden", "mtp")
SPREAD = 0.3  # deviation of what is drawn and no matrix
# Of the second variant: a norm's and the hyper-connections' epsilon and the experts' clamp, so that where and how each
# is applied is felt, and so few of Sinkhorn's iterations that their order is. As published epsilons are below fp32's
# rounding, the clamp is not reached, and the iterations are near their end.
ITERATIONS = 3
FELT = {"rms_norm_eps": 2e-3, "hc_eps": 3e-3, "swiglu_limit": 0.3}


class Drawn:
    """Of DeepSeek-V4 against transformers (``model.alignment.draw.Draw``)."""

    documents = 2
    variants = 2

    def __init__(self, size: Size, tokens: int) -> None:
        a = size.attention
        least = 1 + max(a.window, a.hca_ratio, a.csa_ratio * (size.indexer.topk + 1))
        if tokens < least:
            raise PatchlaneError(
                f"{tokens} tokens of a document are within the window, or leave the indexers nothing to choose",
                f"--tokens {least} or more",
            )
        public.require()
        self.size, self.tokens = size, tokens

    def rows(self, variant: int, seed: int, run: Run, chosen: dict[str, Choice]) -> list[Row]:
        """Of one draw; the second variant has epsilons and a clamp that are felt."""
        from model.alignment import trained  # upstream's code, which is there now
        from model.alignment.deepseek_v4 import rows

        size = felt(self.size) if variant else self.size
        constants = FELT if variant else dict[str, float]()
        found: list[Row] = []
        drawn = weights(size, seed)
        ids = torch.randint(0, size.vocab, (self.documents, self.tokens), generator=_generator(seed))
        theirs = public.said(public.config(size, constants), drawn, ids)
        built, held = trained.network(size, run, chosen, seed), theirs.held
        lacking = {name: tensor for name, tensor in drawn.items() if name not in held}
        trained.fill(built, names.imported(size, {**held, **lacking}))
        against = Judge(public.NAME, seed, found)
        back = names.exported(size, trained.whole(built))
        pairs = {name: (back[name].to(held[name].dtype), held[name]) for name in held}
        against.bits("", "names, there and back", pairs)
        by_formulas = Judge(FORMULAS, seed, found)
        rows.compare(rows.Both(size, built, theirs, ids, exact(size, trained.whole(built), ids)), against, by_formulas)
        return found


def felt(size: Size) -> Size:
    """The size with the constants of the second variant."""
    changed = size.model_dump() | {"rms_norm_eps": FELT["rms_norm_eps"]}
    changed["hyper"] |= {"eps": FELT["hc_eps"], "sinkhorn_iterations": ITERATIONS}
    changed["experts"]["clamp"] = FELT["swiglu_limit"]
    return Size.model_validate(changed)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(size: Size, seed: int) -> dict[str, Tensor]:
    """{the public model's name: fp32 weights}, and tables of different experts: norms and scales around 1, all else
    around 0, matrices so that a product is as large as what it is of."""
    rng, found = _generator(seed), dict[str, Tensor]()
    for name, shape in sorted(names.shapes(size).items()):
        if name.endswith("tid2eid"):
            order = torch.rand(shape[0], size.experts.count, generator=rng).argsort(1)
            found[name] = order[:, : shape[1]].int()
        elif "norm" in name or name.endswith("scale"):
            found[name] = 0.6 + 0.8 * torch.rand(shape, generator=rng)
        else:
            deviation = shape[-1] ** -0.5 if len(shape) > 1 and not name.endswith("position_bias") else SPREAD
            found[name] = deviation * torch.randn(shape, generator=rng)
    return found


def exact(size: Size, kept: Mapping[str, Tensor], ids: Tensor) -> formulas.Said:
    """What the formulas give: of the row [B S] what ``formulas.document`` does, ``losses``, and gradients of the sum of
    the losses as they are trained, {a checkpoint's key: gradient, None where there is none}."""
    w = {key: t.double().requires_grad_() if t.is_floating_point() else t for key, t in kept.items()}
    c, tokens = dims.config(size), ids.tolist()
    documents = [formulas.document(own, w, c, index=True) for own in tokens]
    found = objective.losses(documents, tokens, c)
    coefficients = {
        "lm": 1.0,
        "mtp": size.mtp_loss_coeff,
        "index": size.indexer.loss_coeff,
        "aux": size.experts.aux_loss_coeff,
    }
    total = sum((coefficients[name] * found[name] for name in found), torch.zeros((), dtype=torch.float64))
    learned = {key: t for key, t in w.items() if t.requires_grad}
    gradients = torch.autograd.grad(total, list(learned.values()), allow_unused=True)
    return {
        "losses": found,
        "gradients": dict(zip(learned, gradients, strict=True)),
        "biases": [w[f"{place}mlp.router.expert_bias"].detach() for place in _learned(c)],
        **{
            name: torch.cat([said[name] for said in documents]).detach()
            for name in ("entered", "left", "hidden", "mtp")
        },
        **{name: _by_layer(documents, name) for name in formulas.KEPT},
    }


def _learned(c: dims.Config) -> Iterable[str]:
    """Where the keys of layers with a learned router begin, MTP's last."""
    yield from (f"decoder.layers.{2 * i + 1}." for i in range(c.hashed, len(c.kinds)))
    yield f"{formulas.MTP}mtp_model_layer.layers.1."


def _by_layer(documents: list[formulas.Said], name: str) -> list[Any]:
    """Of each layer the documents' lists in one, or their tensors."""

    def joined(parts: tuple[Any, ...]) -> Any:
        if isinstance(parts[0], Tensor):
            return torch.cat(parts)
        return None if parts[0] is None else [one for part in parts for one in part]

    return [joined(parts) for parts in zip(*(said[name] for said in documents), strict=True)]
