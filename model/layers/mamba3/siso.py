"""Mamba-3's SISO scan in plain torch: MIMO's of rank 1, whose projections are ones.

The kernels rotate neighbouring components, 2 n with 2 n + 1, where MIMO's rotate n with n + N/2. Scores are sums over
the components, so that queries and keys may be reordered alike.

Source: mamba_ssm/ops/triton/mamba3/mamba3_siso_fwd.py @ a14b1dff0454a3bc27d9eb31355dc01e4b2490ec (2.3.2.post1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.layers.mamba3.reference import mamba3_mimo_reference


def _halves(x: Tensor) -> Tensor:
    """``x`` [..., N] with the components 2 n ahead of the components 2 n + 1."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def mamba3_siso_reference(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    ADT: Tensor,
    DT: Tensor,
    Trap: Tensor,
    Q_bias: Tensor,
    K_bias: Tensor,
    Angles: Tensor,
    D: Tensor | None = None,
    Z: Tensor | None = None,
    Input_States: None = None,
    chunk_size: int = 64,
    return_final_states: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Signature and result of ``mamba_ssm.ops.triton.mamba3.mamba3_siso_combined``, on any device, in V's dtype.

    Q, K [B, S, G, N]; V, Z [B, S, H, P]; ADT, DT, Trap [B, H, S]; Q_bias, K_bias [H, N]; Angles [B, S, H, A]; D [H];
    ``cu_seqlens`` as ``mamba3_mimo_reference`` has it. -> [B, S, H, P]. No states: ValueError for them.
    """
    if Input_States is not None or return_final_states:
        raise ValueError("states are for decoding, which this reference does not do")
    ones = torch.ones(V.shape[2], 1, V.shape[3], device=V.device)  # [H, 1, P]
    q, k = (_halves(x).unsqueeze(2) for x in (Q, K))  # [B, S, 1, G, N]
    q_bias, k_bias = (_halves(x).unsqueeze(1) for x in (Q_bias, K_bias))  # [H, 1, N]
    out = mamba3_mimo_reference(
        q,
        k,
        V,
        ADT,
        DT,
        Trap,
        q_bias,
        k_bias,
        ones,
        ones,
        ones,
        Angles,
        D,
        Z,
        chunk_size,
        rotary_dim_divisor=Q.shape[-1] // Angles.shape[-1],
        dtype=V.dtype,
        cu_seqlens=cu_seqlens,
    )
    assert isinstance(out, Tensor)
    return out
