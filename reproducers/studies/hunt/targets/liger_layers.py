"""Liger-Kernel's norms, activations, rotations and mixtures. References: torch, and upstream's docstrings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from reproducers.studies.hunt.targets.target import Operand, Target

FUNCTIONAL = "liger_kernel.transformers.functional:"
HIDDEN = (1, 2, 3, 8, 17, 32, 65, 129)
BATCH = (1, 2, 3)
TOKENS = (1, 2, 3, 5)
_SIZES = {"B": BATCH, "T": TOKENS, "H": HIDDEN}
_CASTING = {"casting_mode": ("llama", "gemma", "none"), "in_place": (True, False), "offset": (0.0, 1.0)}


def rms_norm(X: Any, W: Any = None, eps: float = 1e-6, offset: float = 0.0, **same: Any) -> Any:
    """Root mean square normalisation (arXiv 1910.07467); casts and places count for nothing in fp64."""
    y = X * torch.rsqrt(X.square().mean(-1, keepdim=True) + eps)
    return y if W is None else y * (W + offset)


def fused_add_rms_norm(X: Any, R: Any, W: Any, eps: float = 1e-6, offset: float = 0.0, **same: Any) -> Any:
    """(norm of the sum, the sum)."""
    total = X + R
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * (W + offset), total


def modulated_rms_norm(
    X: Any, W: Any = None, scale: Any = None, shift: Any = None, eps: float = 1e-6, offset: float = 0.0, **same: Any
) -> Any:
    """The norm times (1 + scale), plus shift; a row of scale for each batch."""
    y = X * torch.rsqrt(X.square().mean(-1, keepdim=True) + eps)
    y = (y if W is None else y * (W + offset)) * (1 + scale)
    return y if shift is None else y + shift


def layer_norm(X: Any, W: Any, B: Any, eps: float) -> Any:
    """torch's."""
    return F.layer_norm(X, X.shape[-1:], W, B, eps)


def group_norm(X: Any, weight: Any, bias: Any, groups: int) -> Any:
    """torch's."""
    return F.group_norm(X, groups, weight, bias, 1e-6)


def call_group_norm(function: Any, X: Any, weight: Any, bias: Any, groups: int) -> Any:
    """With the number of channels that X has."""
    return function(X, weight, bias, X.shape[1], groups, 1e-6)


def poly_norm(X: Any, W: Any, B: Any, eps: float = 1e-6, **same: Any) -> Any:
    """Weighted norms of the powers of x (arXiv 2411.03884)."""
    powers = (X**3, X**2, X)
    return sum(w * p * torch.rsqrt(p.square().mean(-1, keepdim=True) + eps) for w, p in zip(W, powers, strict=True)) + B


def swiglu(a: Any, b: Any) -> Any:
    """SiLU(a) * b."""
    return F.silu(a) * b


def geglu(a: Any, b: Any) -> Any:
    """GELU(a) * b, by tanh."""
    return F.gelu(a, approximate="tanh") * b


def relu_squared(x: Any) -> Any:
    """ReLU(x) squared."""
    return F.relu(x).square()


def softmax(x: Any) -> Any:
    """torch's."""
    return x.softmax(-1)


def sparsemax(input: Any, dim: int = -1) -> Any:
    """The Euclidean projection onto the simplex (arXiv 1602.02068)."""
    z = input.movedim(dim, -1)
    ordered = z.sort(-1, descending=True).values
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    support = (1 + count * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
    threshold = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
    return (z - threshold).clamp(min=0).movedim(-1, dim)


def rope(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding by halves (arXiv 2104.09864), as transformers has it."""

    def turned(x: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos[:, None] + torch.cat([-x[..., half:], x[..., :half]], -1) * sin[:, None]

    return turned(q), turned(k)


def attn_res(V: Any, w_query: Any, w_norm: Any, eps: float = 1e-6) -> Any:
    """Softmax over depth of the query's products with normed blocks (arXiv 2603.15031)."""
    keys = V * torch.rsqrt(V.square().mean(-1, keepdim=True) + eps) * w_norm
    return ((keys @ w_query).softmax(0)[..., None] * V).sum(0)


def mhc_pre(x: Any, h_pre: Any) -> Any:
    """The streams' weighted sum."""
    return (h_pre[..., None] * x).sum(-2)


def mhc_post_res(x: Any, f_out: Any, h_post: Any, h_res: Any) -> Any:
    """Streams mixed by h_res, and what the layer gave, spread by h_post."""
    return h_res @ x + h_post[..., None] * f_out[..., None, :]


def embedding(table: Any, index: Any) -> Any:
    """torch's."""
    return F.embedding(index.clamp(min=0), table)


def call_embedding(function: Any, table: Any, index: Any) -> Any:
    """Without indices to ignore."""
    return function.apply(table, index.clamp(min=0))


def call_gate_up(function: Any, x: Any) -> Any:
    """An autograd.Function takes positions only."""
    return function.apply(x)


def gate_up(x: Any) -> Any:
    """SiLU of the first half times the second."""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def neighborhood(query: Any, key: Any, value: Any, kernel_size: int = 7, dilation: int = 1) -> Any:
    """Softmax attention to positions within ``kernel_size // 2`` steps of ``dilation``."""
    step = torch.arange(query.shape[-2])[:, None] - torch.arange(query.shape[-2])
    near = (step.abs() <= kernel_size // 2 * dilation) & (step % dilation == 0)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.masked_fill(~near, -torch.inf).softmax(-1) @ value


def multi_token(scores: Any, weight: Any, bias: Any = None, padding: int = 0) -> Any:
    """Convolution of causal softmax attention (arXiv 2504.00927), causally masked again."""
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    mixed = F.conv2d(scores.masked_fill(~past, -torch.inf).softmax(-1), weight, bias, padding=padding)
    return mixed.masked_fill(~torch.ones(mixed.shape[-2:], dtype=torch.bool).tril(), 0.0)


_X = Operand("X", "B T H")
_W = Operand("W", "H", "scale")
TARGETS = (
    Target(
        "rms_norm",
        FUNCTIONAL + "liger_rms_norm",
        (_X, _W),
        _SIZES,
        {"eps": (1e-6,), **_CASTING},
        rms_norm,
        rows="B",
    ),
    Target(
        "fused_add_rms_norm",
        FUNCTIONAL + "liger_fused_add_rms_norm",
        (_X, Operand("R", "B T H"), _W),
        _SIZES,
        {"eps": (1e-6,), **_CASTING},
        fused_add_rms_norm,
        rows="B",
    ),
    Target(
        "modulated_rms_norm",
        FUNCTIONAL + "liger_modulated_rms_norm",
        (
            _X,
            Operand("W", "H", "scale"),
            Operand("scale", "B 1 H"),
            Operand("shift", "B 1 H", absent=True),
        ),
        _SIZES,
        _CASTING,
        modulated_rms_norm,
        rows="B",
    ),
    Target(
        "layer_norm",
        FUNCTIONAL + "liger_layer_norm",
        (_X, _W, Operand("B", "H")),
        _SIZES,
        {"eps": (1e-6,)},
        layer_norm,
        rows="B",
    ),
    Target(
        "group_norm",
        FUNCTIONAL + "liger_group_norm",
        (Operand("X", "B C L"), Operand("weight", "C", "scale"), Operand("bias", "C")),
        {"B": BATCH, "C": (2, 4, 6), "L": (1, 5, 16, 33)},
        {"groups": (1, 2, 3)},
        group_norm,
        call_group_norm,
        rows="B",
        fits=lambda sizes, options: sizes["C"] % options["groups"] == 0,
    ),
    Target(
        "poly_norm",
        FUNCTIONAL + "liger_poly_norm",
        (_X, Operand("W", "3", "scale"), Operand("B", "")),
        _SIZES,
        {"in_place": (True, False)},
        poly_norm,
        rows="B",
    ),
    Target(
        "swiglu",
        FUNCTIONAL + "liger_swiglu",
        (Operand("a", "B T H"), Operand("b", "B T H")),
        _SIZES,
        {},
        swiglu,
        rows="B",
    ),
    Target(
        "geglu", FUNCTIONAL + "liger_geglu", (Operand("a", "B T H"), Operand("b", "B T H")), _SIZES, {}, geglu, rows="B"
    ),
    Target(
        "relu_squared", FUNCTIONAL + "liger_relu_squared", (Operand("x", "B T H"),), _SIZES, {}, relu_squared, rows="B"
    ),
    Target("softmax", FUNCTIONAL + "liger_softmax", (Operand("x", "B T H"),), _SIZES, {}, softmax, rows="B"),
    Target(
        "sparsemax",
        FUNCTIONAL + "liger_sparsemax",
        (Operand("input", "B T H"),),
        _SIZES,
        {"dim": (-1, 1)},
        sparsemax,
        rows="B",
    ),
    Target(
        "fused_gate_up",
        "liger_kernel.ops:LigerFusedGateUpSiLUMulFunction",
        (Operand("x", "N 2*H"),),
        {"N": TOKENS, "H": HIDDEN},
        {},
        gate_up,
        call_gate_up,
        rows="N",
    ),
    Target(
        "rope",
        FUNCTIONAL + "liger_rope",
        (
            Operand("q", "B N T 2*D"),
            Operand("k", "B K T 2*D"),
            Operand("cos", "1 T 2*D", "cos", grad=False),
            Operand("sin", "1 T 2*D", "sin", grad=False),
        ),
        {"B": BATCH, "N": (1, 2, 4), "K": (1, 2, 3), "T": TOKENS, "D": (1, 2, 4, 8)},
        {},
        rope,
        rows="B",
    ),
    Target(
        "attn_res",
        FUNCTIONAL + "liger_attn_res",
        (Operand("V", "N B T H"), Operand("w_query", "H"), Operand("w_norm", "H", "scale")),
        {"N": (1, 2, 3, 5), **_SIZES},
        {},
        attn_res,
    ),
    Target(
        "mhc_pre",
        FUNCTIONAL + "liger_mhc_pre",
        (Operand("x", "B T S C"), Operand("h_pre", "B T S")),
        {"B": BATCH, "T": TOKENS, "S": (1, 2, 4), "C": HIDDEN},
        {},
        mhc_pre,
        rows="B",
    ),
    Target(
        "mhc_post_res",
        FUNCTIONAL + "liger_mhc_post_res",
        (Operand("x", "B T S C"), Operand("f_out", "B T C"), Operand("h_post", "B T S"), Operand("h_res", "B T S S")),
        {"B": BATCH, "T": TOKENS, "S": (1, 2, 4), "C": HIDDEN},
        {},
        mhc_post_res,
        rows="B",
    ),
    Target(
        "embedding",
        "liger_kernel.ops:LigerEmbeddingFunction",
        (Operand("table", "V H"), Operand("index", "B T", "label V", grad=False)),
        {"B": BATCH, "T": TOKENS, "V": (1, 2, 5, 20), "H": HIDDEN},
        {},
        embedding,
        call_embedding,
    ),
    Target(
        "fused_neighborhood_attention",
        FUNCTIONAL + "liger_fused_neighborhood_attention",
        (Operand("query", "B N T D"), Operand("key", "B N T D"), Operand("value", "B N T D")),
        {"B": (1, 2), "N": (1, 2), "T": (1, 2, 5), "D": (1, 4, 17)},
        {"kernel_size": (3, 1, 5, 7), "dilation": (1, 2)},
        neighborhood,
        rows="B",
    ),
    Target(
        "multi_token_attention",
        FUNCTIONAL + "liger_multi_token_attention",
        (Operand("scores", "B C L L"), Operand("weight", "C C K K"), Operand("bias", "C", absent=True)),
        {"B": BATCH, "C": (1, 2), "L": (3, 5, 8), "K": (1, 3)},
        {"padding": (0, 1)},
        multi_token,
        rows="B",
    ),
)
