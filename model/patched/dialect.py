"""What Megatron calls the same thing in the code of each stack, told by looking at it, in this one place.

Import it with the overlay active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_layer_allocation import Symbols
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

# Slots that this code lacks, and those that their layers lie in. A layer is whatever its spec says, and all of these
# are built and called alike. Branch dev has none for dense MLA, and NAM56R no sliding window. Release 0.19 has none for
# DeepSeek-V4's three kinds of attention, and DeepSeek-V4 none of those whose place they take; "*" is not free, for it
# excludes "D" and "+" there.
_LACKS_MLA = not hasattr(Symbols, "MLA")
PLACES = (
    {"mla_layer": "window_layer"}
    if _LACKS_MLA
    else {"window_layer": "gdn_layer", "csa_layer": "dsa_layer", "hca_layer": "mla_layer"}
)
_SLOTS = {
    "MAMBA": "mamba_layer",
    "GDN": "gdn_layer",
    "ATTENTION": "attention_layer",
    "DS_ATTENTION": "dsa_layer",
    "MLA": "mla_layer",
    "CSA": "csa_layer",
    "HCA": "hca_layer",
    "WINDOW": "window_layer",
    "MLP": "mlp_layer",
    "MOE": "moe_layer",
}
_SYMBOLS = {slot: str(getattr(Symbols, name)) for name, slot in _SLOTS.items() if hasattr(Symbols, name)}
SYMBOLS = _SYMBOLS | {slot: _SYMBOLS[place] for slot, place in PLACES.items()}  # {slot: what a pattern says for it}
# What the tracker of MTP's losses calls their sums over micro-batches [depths], and what sets them to zero.
_SUMS = hasattr(MTPLossLoggingHelper, "clean_loss_in_tracker")
MTP_LOSSES = "loss_sums" if _SUMS else "loss_values"
clear_mtp_losses: Callable[[], None] = (
    MTPLossLoggingHelper.clean_loss_in_tracker if _SUMS else MTPLossLoggingHelper.clean_metrics_in_tracker
)


def hybrid_submodules(**parts: Any) -> Any:
    """The hybrid stack's submodules, by slot, each under the name that Megatron has for its place."""
    return hybrid_block.HybridStackSubmodules(**{PLACES.get(name, name): spec for name, spec in parts.items()})
