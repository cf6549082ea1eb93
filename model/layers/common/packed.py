"""Megatron's record of packed documents, which every layer takes."""

from __future__ import annotations

from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor


def packed(cu_seqlens: Tensor, longest: int) -> PackedSeqParams:
    """The record of documents with bounds ``cu_seqlens`` int32 [D+1] and at most ``longest`` tokens each.

    Make a new one for every forward: DSA's shared indices travel on this object.
    """
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens, max_seqlen_q=longest, max_seqlen_kv=longest
    )
