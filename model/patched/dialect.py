"""What Megatron calls the same thing in the code of each stack, told by looking at it, in this one place.

Import it with the overlay active.
"""

from __future__ import annotations

from typing import Any

from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_layer_allocation import Symbols

# Branch dev has no layer of its own for dense MLA. A layer is whatever its spec says: the place of the sliding window
# layer, which NAM56R has none of, is built and called like that of MLA.
WINDOW = not hasattr(Symbols, "MLA")
MLA_SYMBOL: str = Symbols.WINDOW if WINDOW else Symbols.MLA


def hybrid_submodules(mla_layer: Any, **parts: Any) -> Any:
    """The hybrid stack's submodules, dense MLA under the name that Megatron has for its place."""
    return hybrid_block.HybridStackSubmodules(**{"window_layer" if WINDOW else "mla_layer": mla_layer}, **parts)
