"""M²RNN mixer: a matrix-valued recurrence that is not linear in its state (arXiv 2603.14360)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.common import documents, fp32
from model.layers.m2rnn.reference import log_forget, m2rnn_reference


class M2RNN(nn.Module):  # type: ignore[misc]
    """hidden [T, h] → [T, h]; documents do not see one another.

    A_log and dt_bias [heads] and D [heads, V] are fp32 by contract (``fp32.keep``): a cast of the model must leave
    them so. They and W are not decayed (``_no_weight_decay``). Initial values: W identity, D one, exp(A_log) uniform in
    1 to 16, softplus(dt_bias) log-uniform in 0.001 to 0.1 (the last two as Mamba-2, arXiv 2405.21060).
    """

    def __init__(
        self, hidden: int, heads: int, head_dim_k: int = 64, head_dim_v: int = 16, conv: int = 4, path: str = "torch"
    ) -> None:
        """``path``: "torch", or for tensors on CUDA or under Triton's interpreter "triton_whole", the recurrence and
        what is around it by Triton's kernels, and "triton_kept", which keeps all states until backward."""
        super().__init__()
        self.heads, self.head_dim_k, self.head_dim_v, self.path = heads, head_dim_k, head_dim_v, path
        inner, mixed = heads * head_dim_v, 2 * head_dim_k + heads * head_dim_v
        # forget has its own projection: an odd number of heads in the joint one would leave its product to kernels that
        # load one number at a time
        self.in_proj = nn.Linear(hidden, mixed + inner, bias=False)
        self.forget_proj = nn.Linear(hidden, heads, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(mixed, conv))
        self.conv_bias = nn.Parameter(torch.empty(mixed))
        self.W = nn.Parameter(torch.empty(heads, head_dim_v, head_dim_v))
        self.W._no_weight_decay = True
        self.A_log = _kept(heads)
        self.dt_bias = _kept(heads)
        self.D = _kept(heads, head_dim_v)
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out_proj = nn.Linear(inner, hidden, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires."""
        for module in (self.in_proj, self.forget_proj, self.norm, self.out_proj):
            module.reset_parameters()
        bound = self.conv_weight.shape[1] ** -0.5  # nn.Conv1d's, for one input channel a group
        with torch.no_grad():
            nn.init.uniform_(self.conv_weight, -bound, bound)
            nn.init.uniform_(self.conv_bias, -bound, bound)
            self.W.copy_(torch.eye(self.head_dim_v).expand_as(self.W))
            self.A_log.uniform_(1, 16).log_()
            dt = self.dt_bias.uniform_(math.log(1e-3), math.log(1e-1)).exp_()
            dt.add_((-torch.expm1(-dt)).log_())  # softplus⁻¹(dt) = dt + log(1 - e^-dt)
            self.D.fill_(1)

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """hidden [T, h] in the dtype of the projections, cu_seqlens [D+1] int32 → [T, h] in the same dtype.

        Raises ValueError for other ``cu_seqlens``, as ``documents.check``.
        """
        K, inner = self.head_dim_k, self.heads * self.head_dim_v
        mixed, gate = self.in_proj(hidden).split([2 * K + inner, inner], dim=-1)
        x = self.forget_proj(hidden)  # [T, heads]
        place = documents.positions(cu_seqlens, len(hidden))
        q, k, v = self._convolved(mixed, place).split([K, K, inner], dim=-1)
        heads = v.unflatten(-1, (self.heads, self.head_dim_v))  # [T, heads, V]
        y = self._recurrence(q, k, heads, log_forget(x, self.A_log, self.dt_bias), cu_seqlens)
        out: Tensor = self.out_proj(self.norm(self._gated(y.flatten(1), v, gate).to(hidden.dtype)))
        return out

    def _convolved(self, mixed: Tensor, place: Tensor) -> Tensor:
        if self.path != "torch":
            from model.layers.m2rnn.around import conv_silu

            return conv_silu(mixed, self.conv_weight, self.conv_bias, place)
        return F.silu(causal_conv(mixed, self.conv_weight, self.conv_bias, place))

    def _gated(self, y: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        """(y + D v) silu(gate), [T, heads V]; fp32 on torch's path, for D's sake."""
        if self.path != "torch":
            from model.layers.m2rnn.around import gated

            return gated(y, v, self.D.flatten(), gate)
        return (y + self.D.flatten() * v) * F.silu(gate)

    def _recurrence(self, q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, cu_seqlens: Tensor) -> Tensor:
        if self.path == "torch":
            return m2rnn_reference(q, k, v, log_f, self.W, cu_seqlens)
        from model.layers.m2rnn.triton import m2rnn_triton

        return m2rnn_triton(q, k, v, log_f, self.W, cu_seqlens, keep=self.path == "triton_kept")


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor, place: Tensor) -> Tensor:
    """Depthwise causal convolution within documents, [T, channels] → the same, dtype kept, accumulated in fp32 or more.

    weight [channels, width], its last column on the token itself; bias [channels]; place [T], the token's within its
    document: values before the document's first token count as zero.
    """
    taps = weight.to(torch.promote_types(x.dtype, torch.float32)).flip(1).unbind(1)
    y = bias + x * taps[0]
    for back, tap in enumerate(taps[1:], start=1):
        before = F.pad(x, (0, 0, back, 0))[: len(x)] * (place >= back).unsqueeze(-1)  # [T, channels]
        y = y + before * tap
    return y.to(x.dtype)


def _kept(*shape: int) -> nn.Parameter:
    parameter = fp32.keep(nn.Parameter(torch.empty(*shape, dtype=torch.float32)))
    parameter._no_weight_decay = True
    return parameter
