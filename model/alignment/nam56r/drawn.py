"""One draw of weights and tokens: the network, the formulas, and the rows of the table."""

from __future__ import annotations

import torch
from torch import Tensor

from model.alignment.comparison import FORMULAS, Judge, Row
from model.alignment.nam56r import packed
from model.alignment.nam56r.exact import exact
from model.families.nam56r import Size
from model.kinds.path import Choice
from model.kinds.run import Run
from patchlane.base.errors import PatchlaneError

A_FLOOR = 1e-4  # of the published model: the slowest rate of decay of Mamba-3
# Of the second variant: a floor that half of the rates are below, weights of losses that gradients feel, and so small
# a residual, B, C and indexer's keys, the latter ahead of their norms, that the norms' epsilon is felt.
FELT_FLOOR = 0.7
FELT = {"mtp_loss_coeff": 0.5, "aux_loss_coeff": 0.3, "indexer_loss_coeff": 0.5}
FAINT = 0.02
WRITERS, WRITTEN = ("linear_proj.weight", "out_proj.weight", "linear_fc2.weight"), 0.1
SPREAD, OF_ROUTERS = 0.3, 0.1  # deviations of what is drawn and no matrix; tables; choosing biases


class Drawn:
    """Of NAM56R against its formulas (``model.alignment.draw.Draw``)."""

    documents = packed.DOCUMENTS
    variants = 2

    def __init__(self, size: Size, tokens: int) -> None:
        if tokens <= (topk := size.indexer.topk):
            raise PatchlaneError(
                f"{tokens} tokens of a document leave the indexers nothing to choose", f"--tokens {topk + 1} or more"
            )
        self.size, self.tokens = size, tokens

    def rows(self, variant: int, seed: int, run: Run, chosen: dict[str, Choice]) -> list[Row]:
        """Of one draw."""
        from model.alignment import trained  # upstream's code, which is there now
        from model.alignment.nam56r import network, rows

        size = felt(self.size) if variant else self.size
        floor = FELT_FLOOR if variant else A_FLOOR
        drawn = weights(size, seed, faint=bool(variant))
        built = trained.network(size, run, chosen, seed)
        trained.fill(built, drawn)
        row = packed.row(size, self.tokens, variant, seed)
        ours, found = network.passed(size, built, row), list[Row]()
        rows.compare(size, row, ours, exact(size, floor, drawn, row, ours.taken), Judge(FORMULAS, seed, found))
        return found


def felt(size: Size) -> Size:
    """The size with the constants of the second variant."""
    changed = size.with_coefficients(FELT).model_dump()
    changed["mamba"]["A_floor"] = FELT_FLOOR
    return Size.model_validate(changed)


def weights(size: Size, seed: int, faint: bool) -> dict[str, Tensor]:
    """{a checkpoint's key: fp32 weights}: norms around 1, MIMO's projections around 1 or one of its ranks' share, all
    else around 0, tables small, and matrices so that a product is as large as what it is of. ``WRITERS`` of the main
    stack's residual are less, so that rounding does not grow from layer to layer, and much less where ``faint``."""
    rng, found = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    shapes = {p + key: shape for p, kind in size.placed for key, shape in kind.shapes().items()}
    for name, shape in sorted(shapes.items()):
        if name.endswith(("norm.weight", "mimo_x", "mimo_z", "mimo_o", ".D", "conv_bias")):
            found[name] = 0.6 + 0.8 * torch.rand(shape, generator=rng)
            found[name] /= shape[1] if name.endswith(("mimo_x", "mimo_o")) else 1
        else:
            found[name] = _deviation(name, shape, faint) * torch.randn(shape, generator=rng)
        if name.endswith(WRITERS) and not name.startswith("mtp."):
            found[name] *= WRITTEN * FAINT / SPREAD if faint else WRITTEN
        if faint and name.endswith("linear_wk.weight"):
            found[name] *= FAINT
        if faint and name.endswith("mamba.in_proj.weight"):
            first, m = 2 * size.hidden * size.mamba.expand, size.mamba
            found[name][first : first + 2 * m.state * m.groups * m.rank] *= FAINT  # of B and C
    return found


def _deviation(name: str, shape: tuple[int, ...], faint: bool) -> float:
    if name.endswith("expert_bias"):
        return OF_ROUTERS
    if name.startswith(("embedding.", "ngram.table.", "structure.embeddings.")):
        return FAINT if faint else SPREAD
    return SPREAD if len(shape) == 1 or name.endswith("_bias") else shape[-1] ** -0.5
