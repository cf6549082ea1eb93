"""M²RNN with its matrix state and the window of its convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.families.nam56r import Size
from model.families.pattern import Layer
from model.layers.common.decoding import Step
from model.layers.m2rnn.mixer import M2RNN, causal_conv
from model.layers.m2rnn.reference import log_forget


@dataclass
class M2rnnState:
    """After a token; zero ahead of a document. ``h`` [heads, K, V]; ``window`` [width - 1, channels], the last inputs
    of the convolution."""

    h: Tensor
    window: Tensor


class M2rnn(M2RNN):
    """The mixer that is trained, a few tokens at a time."""

    def __init__(self, size: Size, layer: Layer) -> None:
        r = size.m2rnn
        super().__init__(size.hidden, r.heads, r.k_dim, r.v_dim, r.conv)

    def begin(self, capacity: int) -> M2rnnState:
        """The state ahead of a document."""
        (channels, width), like = self.conv_weight.shape, self.in_proj.weight
        work = torch.promote_types(like.dtype, torch.float32)
        h = like.new_zeros(self.heads, self.head_dim_k, self.head_dim_v, dtype=work)
        return M2rnnState(h, like.new_zeros(width - 1, channels))

    def forward(self, x: Tensor, state: M2rnnState, step: Step) -> Tensor:  # type: ignore[override]
        """x [S, h] -> [S, h]."""
        K, inner = self.head_dim_k, self.heads * self.head_dim_v
        mixed, gate = self.in_proj(x).split([2 * K + inner, inner], dim=-1)
        inputs = torch.cat((state.window, mixed))
        state.window = inputs[len(mixed) :]
        full = torch.full((len(inputs),), len(inputs), device=x.device)  # the window stands for what is ahead
        taken = causal_conv(inputs, self.conv_weight, self.conv_bias, full)[-len(mixed) :]
        q, k, v = F.silu(taken).split([K, K, inner], dim=-1)
        v = v.unflatten(-1, (self.heads, self.head_dim_v))  # [S, heads, V]
        y = self._scan(q, k, v, log_forget(self.forget_proj(x), self.A_log, self.dt_bias), state).to(q.dtype)
        y = (y + self.D * v).flatten(1) * F.silu(gate)
        out: Tensor = self.out_proj(self.norm(y.to(x.dtype)))
        return out

    def _scan(self, q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, state: M2rnnState) -> Tensor:
        """q, k [S, K], v [S, heads, V], log_f [S, heads] -> [S, heads, V], as ``m2rnn_reference``."""
        h, W, found = state.h, self.W.to(state.h.dtype), []
        q, k, v, log_f = (t.to(h.dtype) for t in (q, k, v, log_f))
        kv = torch.einsum("sk,snv->snkv", k, v)
        gates = zip(log_f.exp()[..., None, None], -log_f.expm1()[..., None, None], strict=True)
        for q_t, kv_t, (f_t, i_t) in zip(q, kv, gates, strict=True):
            h = torch.addcmul(f_t * h, i_t, torch.baddbmm(kv_t, h, W).tanh())
            found.append(q_t @ h)
        state.h = h
        return torch.stack(found)
