"""Mamba-3's MIMO scan in plain torch: a chunked, differentiable stand-in for mamba-ssm's TileLang kernels.

Per head, with q = rotate(C + C_bias) and k = rotate(B + B_bias) of rank R, ψ = MIMO_V and λ = sigmoid(Trap):

    h_t = exp(ADT_t) (h_{t-1} + (1 - λ_t) DT_t Σ_r k_{t-1,r} (ψ_r v_{t-1})ᵀ) + λ_t DT_t Σ_r k_{t,r} (ψ_r v_t)ᵀ
    y_{t,r} = q_{t,r}ᵀ h_t + D ψ_r v_t,   out_t = Σ_r MIMO_Out_r ⊙ y_{t,r} ⊙ SiLU(MIMO_Z_r ⊙ z_t)

The rotation angle is the document's running sum of π tanh(Angles) DT and turns component n with component n + N/2.
Substituting the sum over past steps, step s weighs λ_s DT_s + (1 - λ_{s+1}) DT_{s+1} in every later step and λ_s DT_s
in its own. The kernels and this module compute this form, C steps at a time. At a document's first step
h, the previous step and the angle are zero. Sums of decays and angles are fp64, everything else fp32 (fp64 for fp64).

Source: mamba_ssm/ops/tilelang/mamba3/mamba3_mimo_fwd.py and, for SISO, mamba_ssm/ops/triton/mamba3/mamba3_siso_fwd.py @
a14b1dff0454a3bc27d9eb31355dc01e4b2490ec (2.3.2.post1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Stream:
    """All rows as one stream of T steps, padded to whole chunks; padding is a document of its own.

    ``document`` int64 [T]; ``ends`` int64 [documents], one past each document's last step; ``chunk`` C.
    """

    document: Tensor
    ends: Tensor
    chunk: int

    @classmethod
    def of(cls, batch: int, length: int, cu_seqlens: Tensor | None, chunk: int, device: torch.device) -> Stream:
        steps = torch.arange(batch * length + -batch * length % chunk, device=device)
        if cu_seqlens is None:
            ends = torch.arange(1, batch + 1, device=device) * length
        else:
            ends = cu_seqlens[1:].to(device=device, dtype=torch.int64)
        return cls(torch.bucketize(steps, ends, right=True), ends, chunk)

    @property
    def chunks(self) -> int:
        return len(self.document) // self.chunk

    def _padded(self, t: Tensor) -> Tensor:
        """[X, T without padding, ...] to [X, T, ...], with zeros."""
        return F.pad(t, (0, 0) * (t.dim() - 2) + (0, len(self.document) - t.shape[1]))

    def heads_first(self, t: Tensor) -> Tensor:
        """[B, S, ..., H, X] to [H, T, ..., X]."""
        return self._padded(t.movedim(-2, 0).flatten(1, 2))

    def rows_joined(self, t: Tensor) -> Tensor:
        """[B, H, S] to [H, T]."""
        return self._padded(t.transpose(0, 1).flatten(1))

    def same(self, left: Tensor, right: Tensor) -> Tensor:
        """bool [..., A, B]: the documents ``left`` [..., A] and ``right`` [..., B] are the same."""
        return left[..., :, None] == right[..., None, :]


def mamba3_mimo_reference(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    ADT: Tensor,
    DT: Tensor,
    Trap: Tensor,
    Q_bias: Tensor,
    K_bias: Tensor,
    MIMO_V: Tensor,
    MIMO_Z: Tensor | None,
    MIMO_Out: Tensor | None,
    Angles: Tensor,
    D: Tensor | None,
    Z: Tensor | None,
    chunk_size: int,
    rotary_dim_divisor: int,
    dtype: torch.dtype,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Signature and result of ``mamba_ssm.ops.tilelang.mamba3.mamba3_mimo.mamba3_mimo``, on any device.

    Args: ``Q``, ``K`` [B, S, R, G, N]; ``V``, ``Z`` [B, S, H, P], G divides H; ``ADT``, ``DT``, ``Trap`` [B, H, S];
    ``Q_bias``, ``K_bias`` [H, R, N]; ``MIMO_V``, ``MIMO_Z``, ``MIMO_Out`` [H, R, P]; ``Angles`` [B, S, H,
    N / rotary_dim_divisor]; ``D`` [H]; ``cu_seqlens`` integer [documents + 1] from 0 to S, which wants B = 1; empty
    documents are allowed. ``MIMO_Z`` is read where ``Z`` is given. ``chunk_size`` C does not change the value.

    Returns: ``dtype`` [B, S, H, P], or [B, S, R, H, P] where ``MIMO_Out`` is None. With ``return_state`` also, detached
    and per document (batch row where ``cu_seqlens`` is None): the angle in [0, 2π) [·, H, N / divisor], the state
    [·, H, P, N], the last step's rotated key [·, R, H, N] and value [·, H, P]. (Upstream's last value is that of the
    stream's end only, mamba3_mimo.py:116.)

    Raises ValueError if shapes do not fit.
    """
    (batch, length, _, groups, _), heads = Q.shape, V.shape[2]
    if heads % groups or (cu_seqlens is not None and batch != 1):
        raise ValueError(
            f"{heads} heads in {groups} groups, batch {batch}: groups must divide heads, packed batch is 1"
        )
    stream = Stream.of(batch, length, cu_seqlens, chunk_size, V.device)
    work = torch.float64 if V.dtype == torch.float64 else torch.float32
    v = stream.heads_first(V.to(work)).unsqueeze(2) * MIMO_V.to(work).unsqueeze(1)  # [H, T, R, P]
    adt, dt, trap = (stream.rows_joined(t.to(work)) for t in (ADT, DT, Trap))  # [H, T]
    theta = _angles(stream, stream.heads_first(Angles.to(work)), dt)  # [H, T, N / divisor]
    q = _rotated(stream, Q.to(work), Q_bias.to(work), theta, rotary_dim_divisor)  # [H, T, R, N]
    k = _rotated(stream, K.to(work), K_bias.to(work), theta, rotary_dim_divisor)  # [H, T, R, N]
    own, later = _weights(stream, dt, trap.sigmoid())  # [H, T] each
    decay = adt.double().cumsum(-1)  # [H, T], running sum of log decays over all documents
    y = _scan(stream, q, k, v, own, later, decay)  # [H, T, R, P]
    y = _gated(stream, y, v, D, Z, MIMO_Z)
    out = _projected(y[:, : batch * length], MIMO_Out).unflatten(0, (batch, length))
    out = out.to(dtype).contiguous()
    if not return_state:
        return out
    return out, *_final(stream, theta, k, v, own, later, decay, V, dtype)


def _gated(stream: Stream, y: Tensor, v: Tensor, D: Tensor | None, Z: Tensor | None, MIMO_Z: Tensor | None) -> Tensor:
    """[H, T, R, P]: ``y`` plus the skip of ``v`` (both [H, T, R, P]), gated by ``Z`` [B, S, H, P]."""
    if D is not None:
        y = y + D.to(y.dtype)[:, None, None, None] * v
    if Z is None:
        return y
    if MIMO_Z is None:
        raise ValueError("Z is given without MIMO_Z")
    return y * F.silu(stream.heads_first(Z.to(y.dtype)).unsqueeze(2) * MIMO_Z.to(y.dtype).unsqueeze(1))


def _projected(y: Tensor, projection: Tensor | None) -> Tensor:
    """``y`` [H, T, R, P] to [T, H, P] by ``projection`` [H, R, P], or to [T, R, H, P] without one."""
    if projection is None:
        return y.permute(1, 2, 0, 3)
    return (y * projection.to(y.dtype).unsqueeze(1)).sum(2).transpose(0, 1)


def _angles(stream: Stream, angles: Tensor, dt: Tensor) -> Tensor:
    """[H, T, A]: each document's running sum of π tanh(``angles`` [H, T, A]) ``dt`` [H, T], modulo 2π."""
    total = (math.pi * angles.tanh() * dt.unsqueeze(-1)).cumsum(1, dtype=torch.float64)
    before = F.pad(total, (0, 0, 1, 0))  # [H, T + 1, A]: the sum ahead of each step
    starts = F.pad(stream.ends, (1, 0))[stream.document]  # [T], first step of each step's document
    return (total - before[:, starts]).remainder(2 * math.pi).to(angles.dtype)


def _rotated(stream: Stream, x: Tensor, bias: Tensor, theta: Tensor, divisor: int) -> Tensor:
    """[H, T, R, N]: ``x`` [B, S, R, G, N] repeated for the heads of its group, plus ``bias`` [H, R, N], rotated."""
    groups, half, turned = x.shape[3], x.shape[4] // 2, x.shape[4] // divisor
    x = stream.heads_first(x).unsqueeze(1) + bias.unflatten(0, (groups, -1)).unsqueeze(2)  # [G, H / G, T, R, N]
    x = x.flatten(0, 1)
    cos, sin = theta.cos().unsqueeze(2), theta.sin().unsqueeze(2)  # [H, T, 1, N / divisor]
    a, b, c, d = x.split([turned, half - turned, turned, half - turned], dim=-1)
    return torch.cat((cos * a - sin * c, b, sin * a + cos * c, d), dim=-1)


def _weights(stream: Stream, dt: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """[H, T] each: the weight of a step in its own step and, before decay, in every later step of its document."""
    own = dt * share
    rest = (dt * (1 - share))[:, 1:] * (stream.document[1:] == stream.document[:-1])
    return own, own + F.pad(rest, (0, 1))


def _scan(stream: Stream, q: Tensor, k: Tensor, v: Tensor, own: Tensor, later: Tensor, decay: Tensor) -> Tensor:
    """[H, T, R, P]: every step's queries against its document's steps up to it; ``decay`` fp64 [H, T]."""
    shape, rank = (stream.chunks, stream.chunk), q.shape[2]
    q, k, v = (t.unflatten(1, shape).flatten(2, 3) for t in (q, k, v))  # [H, chunks, C R, N or P]
    own, later, decay = (t.unflatten(1, shape) for t in (own, later, decay))  # [H, chunks, C]
    document = stream.document.view(shape)  # [chunks, C]
    inside = _attention(stream, document, own, later, decay)  # [H, chunks, C, C]
    scores = (q @ k.mT).unflatten(3, (-1, rank)).unflatten(2, (-1, rank))  # [H, chunks, C, R, C, R]
    y = (scores * inside[:, :, :, None, :, None]).flatten(4, 5).flatten(2, 3) @ v  # [H, chunks, C R, P]
    if stream.chunks == 1:
        return y.flatten(1, 2).unflatten(1, (-1, rank))
    last, last_decay = document[:, -1], decay[:, :, -1]  # [chunks], [H, chunks]: at each chunk's last step
    leave = _decayed(last_decay[..., None] - decay, document == last[:, None]).to(q.dtype) * later  # [H, chunks, C]
    states = (k * leave.repeat_interleave(rank, 2).unsqueeze(-1)).mT @ v  # [H, chunks, N, P], one chunk's own
    carried = stream.same(last, last).tril()[:-1]
    between = _decayed(last_decay[:, :-1, None] - last_decay[:, None, :], carried).to(
        q.dtype
    )  # [H, chunks - 1, chunks]
    entering = torch.einsum("hde,henp->hdnp", between, states)  # [H, chunks - 1, N, P]
    enter = _decayed(decay[:, 1:] - last_decay[:, :-1, None], document[1:] == last[:-1, None]).to(q.dtype)
    past = (q[:, 1:] * enter.repeat_interleave(rank, 2).unsqueeze(-1)) @ entering  # [H, chunks - 1, C R, P]
    return (y + F.pad(past, (0, 0, 0, 0, 1, 0))).flatten(1, 2).unflatten(1, (-1, rank))


def _attention(stream: Stream, document: Tensor, own: Tensor, later: Tensor, decay: Tensor) -> Tensor:
    """[H, chunks, C, C]: the weight of step j in step i of the same chunk and document, zero for j > i."""
    before = stream.same(document, document).tril(-1)
    past = _decayed(decay[..., :, None] - decay[..., None, :], before).to(own.dtype) * later.unsqueeze(-2)
    return past + torch.diag_embed(own)


def _decayed(exponent: Tensor, kept: Tensor) -> Tensor:
    """exp(``exponent``) where ``kept``, else 0; it masks first, so that no overflow elsewhere reaches a gradient."""
    return exponent.masked_fill(~kept, -math.inf).exp()


def _final(
    stream: Stream,
    theta: Tensor,
    k: Tensor,
    v: Tensor,
    own: Tensor,
    later: Tensor,
    decay: Tensor,
    V: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Angle, state, key and value after each document's last step, zero for an empty document; see the caller."""
    number = torch.arange(len(stream.ends), device=stream.document.device)
    inside = stream.same(number, stream.document)  # [documents, T]
    at = (stream.ends - 1).clamp_min(0)
    full = inside.any(1)  # [documents]
    weight = _decayed(decay[:, at, None] - decay[:, None, :], inside).to(k.dtype)  # [H, documents, T]
    weight = weight * later.unsqueeze(1)
    state = torch.einsum("hdt,htrn,htrp->dhpn", weight, k, v)
    angle, key = theta[:, at].transpose(0, 1), k[:, at].permute(1, 2, 0, 3)
    value = V.flatten(0, 1)[at]
    kept = (full[:, None, None] * angle, state, full[:, None, None, None] * key.to(dtype), full[:, None, None] * value)
    return tuple(t.detach().contiguous() for t in kept)


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

    MIMO's scan of rank 1, whose projections are ones. The kernels rotate neighbouring components, 2 n with 2 n + 1,
    where MIMO's rotate n with n + N/2. Scores are sums over the components, so queries and keys are reordered alike.

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
