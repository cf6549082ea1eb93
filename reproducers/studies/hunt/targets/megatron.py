"""Megatron-Core on one rank: fused activations, losses, router and rotations. References: torch, as docstrings say.

torch.compile, which Megatron asks for, is left out: the code as it is written runs.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F

from reproducers.probe.lanes.megatron import megatron_lane, start_megatron
from reproducers.probe.ranks import Rank
from reproducers.studies.hunt.targets.target import Operand, Target

PREPARED = 'torch.compiler.set_stance("force_eager")\n    p.megatron_cpu()'  # what a reproducer calls for the same
_FUSIONS = "megatron.core.fusions."
_SIZES = {"T": (1, 2, 3, 5), "B": (1, 2, 3), "H": (1, 2, 8, 17)}
_DTYPES = ("float32", "bfloat16")


def prepare(tree: str) -> None:
    """Before the first import of upstream."""
    torch.compiler.set_stance("force_eager")
    megatron_lane("cpu")
    start_megatron(importlib.import_module, 0, Rank())


def bias_swiglu(input: Any, bias: Any = None) -> Any:
    """SiLU of the first half times the second."""
    a, b = (input if bias is None else input + bias).chunk(2, -1)
    return F.silu(a) * b


def weighted_swiglu(input: Any, weights: Any) -> Any:
    """The same times each token's weight."""
    a, b = input.chunk(2, -1)
    return F.silu(a) * b * weights


def call_weighted_swiglu(function: Any, input: Any, weights: Any) -> Any:
    """Without a bias, which it refuses."""
    return function(input, None, weights)


def call_with_bias(function: Any, input: Any, bias: Any = None) -> Any:
    """None stands for an absent bias."""
    return function(input, bias)


def bias_geglu(input: Any, bias: Any = None) -> Any:
    """GELU, by tanh, of the first half times the second."""
    a, b = (input if bias is None else input + bias).chunk(2, -1)
    return F.gelu(a, approximate="tanh") * b


def bias_gelu(input: Any, bias: Any) -> Any:
    """GELU by tanh."""
    return F.gelu(input + bias, approximate="tanh")


def call_bias_gelu(function: Any, input: Any, bias: Any) -> Any:
    """It takes positions only."""
    return function(input, bias)


def quick_geglu(
    input: Any, weights: Any, bias: Any = None, linear_offset: float = 0.0, clamp_value: float | None = None
) -> Any:
    """x * sigmoid(1.702 x) of the clamped first half times the second and an offset, times each token's weight."""
    if clamp_value is not None:
        a, b = input.chunk(2, -1)
        input = torch.cat([a.clamp(max=clamp_value), b.clamp(-clamp_value, clamp_value)], -1)
    a, b = (input if bias is None else input + bias).chunk(2, -1)
    return a * torch.sigmoid(1.702 * a) * (b + linear_offset) * weights


def call_quick_geglu(function: Any, input: Any, weights: Any, bias: Any = None, **options: Any) -> Any:
    """The bias in its place."""
    return function(input, bias, weights, **options)


def squared_relu(input: Any, weights: Any) -> Any:
    """ReLU squared times each token's weight."""
    return F.relu(input).square() * weights


def token_loss(vocab_parallel_logits: Any, target: Any, label_smoothing: float = 0.0) -> Any:
    """Each token's cross entropy; smoothing as Megatron has it, over the classes but the target's."""
    classes = vocab_parallel_logits.shape[-1]
    logp = vocab_parallel_logits.log_softmax(-1)
    loss = -logp.gather(-1, target[..., None])[..., 0]
    smoothing = label_smoothing * classes / (classes - 1)
    return (1 - smoothing) * loss - smoothing * logp.mean(-1)


def call_fused_loss(function: Any, vocab_parallel_logits: Any, target: Any) -> Any:
    """On a group of one rank."""
    return function(vocab_parallel_logits, target, torch.distributed.group.WORLD)


def z_loss(logits: Any, z_loss_coeff: float) -> Any:
    """The mean of squared logsumexps (arXiv 2202.08906)."""
    return logits.logsumexp(-1).square().mean() * z_loss_coeff


def call_z_loss(function: Any, logits: Any, z_loss_coeff: float) -> Any:
    """Without padding."""
    return function(logits, z_loss_coeff)


def gating(inp: Any, weight: Any, bias: Any = None) -> Any:
    """A product with the router's weight."""
    return F.linear(inp, weight, bias)


def call_gating(function: Any, inp: Any, weight: Any, bias: Any = None) -> Any:
    """In fp32."""
    return function(inp, weight, bias, torch.float32)


def rotary(t: Any, freqs: Any, rotary_interleaved: bool = False, mscale: float = 1.0) -> Any:
    """Rotary embedding of the first dimensions (arXiv 2104.09864), by halves or by pairs."""
    x, rest = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    if rotary_interleaved:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        turned = torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
    return torch.cat([(x * freqs.cos() + turned * freqs.sin()) * mscale, rest], -1)


_INPUT = Operand("input", "T B 2*H")
_WEIGHTS = Operand("weights", "N 1", "scale")
_LOSS = (Operand("vocab_parallel_logits", "T B V"), Operand("target", "T B", "class V", grad=False))
_LOSS_SIZES = {"T": (1, 2, 3, 5), "B": (1, 2, 3), "V": (2, 3, 17, 70)}
_ROWS = {"N": (1, 2, 3, 8), "H": _SIZES["H"]}
TARGETS = (
    Target(
        "bias_swiglu",
        _FUSIONS + "fused_bias_swiglu:bias_swiglu_impl",
        (_INPUT, Operand("bias", "2*H", absent=True)),
        _SIZES,
        {},
        bias_swiglu,
        call_with_bias,
        rows="T",
        dtypes=_DTYPES,
    ),
    Target(
        "weighted_swiglu",
        _FUSIONS + "fused_bias_swiglu:weighted_bias_swiglu_impl",
        (Operand("input", "N 2*H"), _WEIGHTS),
        _ROWS,
        {},
        weighted_swiglu,
        call_weighted_swiglu,
        rows="N",
        dtypes=_DTYPES,
    ),
    Target(
        "bias_geglu",
        _FUSIONS + "fused_bias_geglu:bias_geglu_impl",
        (_INPUT, Operand("bias", "2*H", absent=True)),
        _SIZES,
        {},
        bias_geglu,
        call_with_bias,
        rows="T",
        dtypes=_DTYPES,
    ),
    Target(
        "bias_gelu",
        _FUSIONS + "fused_bias_gelu:bias_gelu_impl",
        (Operand("input", "T B H"), Operand("bias", "H")),
        _SIZES,
        {},
        bias_gelu,
        call_bias_gelu,
        rows="T",
        dtypes=_DTYPES,
    ),
    Target(
        "weighted_quick_geglu",
        _FUSIONS + "fused_bias_geglu:weighted_bias_quick_geglu_impl",
        (Operand("input", "N 2*H"), _WEIGHTS, Operand("bias", "2*H", absent=True)),
        _ROWS,
        {"linear_offset": (0.0, 1.0), "clamp_value": (None, 7.0)},
        quick_geglu,
        call_quick_geglu,
        rows="N",
        dtypes=_DTYPES,
    ),
    Target(
        "weighted_squared_relu",
        _FUSIONS + "fused_weighted_squared_relu:weighted_squared_relu_impl",
        (Operand("input", "N H"), _WEIGHTS),
        _ROWS,
        {},
        squared_relu,
        rows="N",
        dtypes=_DTYPES,
    ),
    Target(
        "fused_vocab_parallel_cross_entropy",
        _FUSIONS + "fused_cross_entropy:fused_vocab_parallel_cross_entropy",
        _LOSS,
        _LOSS_SIZES,
        {},
        token_loss,
        call_fused_loss,
        rows="T",
    ),
    Target(
        "vocab_parallel_cross_entropy",
        "megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
        _LOSS,
        _LOSS_SIZES,
        {"label_smoothing": (0.0, 0.1)},
        token_loss,
        rows="T",
        fits=lambda sizes, options: not options["label_smoothing"] or sizes["V"] > 2,
    ),
    Target(
        "z_loss",
        "megatron.core.transformer.moe.moe_utils:z_loss_func",
        (Operand("logits", "N E"),),
        {"N": (1, 2, 5), "E": (2, 8, 17)},
        {"z_loss_coeff": (1.0, 0.01)},
        z_loss,
        call_z_loss,
        rows="N",
        dtypes=_DTYPES,
    ),
    Target(
        "router_gating_linear",
        "megatron.core.transformer.moe.moe_utils:router_gating_linear",
        (Operand("inp", "T B H"), Operand("weight", "E H"), Operand("bias", "E", absent=True)),
        {**_SIZES, "E": (1, 2, 8)},
        {},
        gating,
        call_gating,
        rows="T",
    ),
    Target(
        "rotary_bshd",
        "megatron.core.models.common.embeddings.rope_utils:_apply_rotary_pos_emb_bshd",
        (Operand("t", "T B N 4*D"), Operand("freqs", "T 1 1 2*D", grad=False)),
        {"T": (1, 2, 5), "B": (1, 2), "N": (1, 2), "D": (1, 2, 4)},
        {"rotary_interleaved": (False, True), "mscale": (1.0, 1.3)},
        rotary,
        dtypes=_DTYPES,
    ),
)
