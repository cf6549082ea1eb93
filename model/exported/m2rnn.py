"""M²RNN with its matrix state and the window of its convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.exported.dims import Dims, Layer
from model.exported.step import Linear, Step


@dataclass
class M2rnnState:
    """After a token; zero ahead of a document. ``h`` [heads, K, V]; ``window`` [width - 1, channels], the last inputs
    of the convolution."""

    h: Tensor
    window: Tensor


class M2rnn(nn.Module):  # type: ignore[misc]
    """M²RNN (arXiv 2603.14360): h_t = f h_{t-1} + (1 - f) tanh(h_{t-1} W + k vᵀ), y_t = qᵀ h_t for each head."""

    def __init__(self, dims: Dims, layer: Layer) -> None:
        super().__init__()
        r = dims.m2rnn
        self.heads, self.k_dim, self.v_dim = r.heads, r.k_dim, r.v_dim
        inner, mixed = r.heads * r.v_dim, 2 * r.k_dim + r.heads * r.v_dim
        self.in_proj, self.forget_proj = Linear(dims.hidden, mixed + inner), Linear(dims.hidden, r.heads)
        self.conv_weight = nn.Parameter(torch.empty(mixed, r.conv))
        self.conv_bias = nn.Parameter(torch.empty(mixed))
        self.W = nn.Parameter(torch.empty(r.heads, r.v_dim, r.v_dim))
        self.A_log = nn.Parameter(torch.empty(r.heads, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(r.heads, dtype=torch.float32))
        self.D = nn.Parameter(torch.empty(r.heads, r.v_dim, dtype=torch.float32))
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out_proj = Linear(inner, dims.hidden)

    def begin(self, capacity: int) -> M2rnnState:
        """The state ahead of a document."""
        (channels, width), like = self.conv_weight.shape, self.in_proj.weight
        work = torch.promote_types(like.dtype, torch.float32)
        h = like.new_zeros(self.heads, self.k_dim, self.v_dim, dtype=work)
        return M2rnnState(h, like.new_zeros(width - 1, channels))

    def forward(self, x: Tensor, state: M2rnnState, step: Step) -> Tensor:
        """x [S, h] -> [S, h]."""
        K, inner = self.k_dim, self.heads * self.v_dim
        mixed, gate = self.in_proj(x).split([2 * K + inner, inner], dim=-1)
        inputs = torch.cat((state.window, mixed))
        state.window = inputs[len(mixed) :]
        q, k, v = F.silu(self._convolved(inputs, len(mixed))).split([K, K, inner], dim=-1)
        v = v.unflatten(-1, (self.heads, self.v_dim))  # [S, heads, V]
        y = self._scan(q, k, v, self._log_forget(x), state).to(q.dtype)
        y = (y + self.D * v).flatten(1) * F.silu(gate)
        out: Tensor = self.out_proj(self.norm(y.to(x.dtype)))
        return out

    def _convolved(self, inputs: Tensor, count: int) -> Tensor:
        """The last ``count`` outputs of the causal convolution of each channel, in the dtype of its inputs."""
        taps = self.conv_weight.to(torch.promote_types(inputs.dtype, torch.float32)).unbind(1)
        y = self.conv_bias + inputs[-count:] * taps[-1]
        for back, tap in enumerate(reversed(taps[:-1]), start=1):
            y = y + inputs[-count - back : -back] * tap
        return y.to(inputs.dtype)

    def _log_forget(self, x: Tensor) -> Tensor:
        """x [S, h] -> log f [S, heads], at least fp32: 1 - f = -expm1(log f) keeps its digits for f near 1."""
        raw: Tensor = self.forget_proj(x)
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        return -self.A_log.to(raw.dtype).exp() * F.softplus(raw + self.dt_bias.to(raw.dtype))

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
