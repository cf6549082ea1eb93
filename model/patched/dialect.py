"""What Megatron calls the same thing in the code of each stack, told by looking at it, in this one place.

Import it with the overlay active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_layer_allocation import Symbols
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

# Branch dev has no layer of its own for dense MLA. A layer is whatever its spec says: the place of the sliding window
# layer, which NAM56R has none of, is built and called like that of MLA.
WINDOW = not hasattr(Symbols, "MLA")
MLA_SYMBOL: str = Symbols.WINDOW if WINDOW else Symbols.MLA
# What the tracker of MTP's losses calls their sums over micro-batches [depths], and what sets them to zero.
_SUMS = hasattr(MTPLossLoggingHelper, "clean_loss_in_tracker")
MTP_LOSSES = "loss_sums" if _SUMS else "loss_values"
clear_mtp_losses: Callable[[], None] = (
    MTPLossLoggingHelper.clean_loss_in_tracker if _SUMS else MTPLossLoggingHelper.clean_metrics_in_tracker
)


def hybrid_submodules(mla_layer: Any, **parts: Any) -> Any:
    """The hybrid stack's submodules, dense MLA under the name that Megatron has for its place."""
    return hybrid_block.HybridStackSubmodules(**{"window_layer" if WINDOW else "mla_layer": mla_layer}, **parts)
