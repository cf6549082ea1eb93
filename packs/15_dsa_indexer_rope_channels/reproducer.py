# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.18.2", "torch>=2.8", "triton==3.6.0", "numpy", "packaging"]
# ///
"""Megatron's DSA indexer rotates the wrong channels: the last ``qk_pos_emb_head_dim`` of each head, and in MLA's order.

DeepSeek's lightning indexer puts the rotated channels first and pairs channel i with i + d/2 ("non-interleaved",
unlike MLA's own heads). Megatron-Core 0.16.x to 0.18.2 rotates the last d channels instead and, because it goes by
``config.multi_latent_attention``, de-interleaves them first: with a checkpoint laid out as DeepSeek's, or as written
by 0.19.0, other tokens are selected and nothing is said. Compared are the real indexer's rotation, its queries, keys
and selected tokens with the same computed here in fp64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from reproducers import probe


def minimal():
    """Which channels the indexer's RoPE pairs: DeepSeek-V3.2 turns 0 with 32, of the first 64."""
    from types import SimpleNamespace

    import torch
    from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexer
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    config = MLATransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=1)
    angles = torch.outer(torch.arange(2.0), 10000 ** (-torch.arange(32.0) / 32))
    angles = torch.cat([angles, angles], dim=-1)[:, None, None]  # [position, 1, 1, channels]
    indexer = SimpleNamespace(config=config, index_head_dim=128, qk_pos_emb_head_dim=64)
    indexer.pg_collection = SimpleNamespace(cp=SimpleNamespace(size=lambda: 1))
    x = torch.zeros(2, 1, 1, 128)  # [position, batch, heads, channels]
    x[1, 0, 0, 0] = 1.0
    turned = DSAIndexer._apply_rope(indexer, x, angles, 1.0)[1].flatten().nonzero().flatten()
    print(f"channel 0 at position 1 turns into channels {turned.tolist()}, should be [0, 32]")
    assert turned.tolist() == [0, 32]


S, B, HIDDEN, LORA = 256, 1, 256, 128  # tokens, batch, model width, width of the compressed queries
HEADS, D, ROTATED, TOPK = 8, 128, 64, 64  # indexer heads, head width and rotated channels as in DeepSeek-V3.2
BASE, SCALE, ORIGINAL, FAST, SLOW = 10000.0, 40.0, 4096, 32.0, 1.0  # DeepSeek's YaRN settings


class Duplicated(nn.Linear):
    """Megatron's linear layers return (output, bias); the one for duplicated weights exists in TE only."""

    def __init__(self, rows: int, columns: int, *, config: Any, **_: Any) -> None:
        super().__init__(rows, columns, bias=False, dtype=config.params_dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


def indexer(p: probe.Probe, rope_type: str) -> Any:
    """The real DSAIndexer in bf16, with weights as if trained: its norm's scale and shift are not 1 and 0."""
    dsa = p.upstream("megatron.core.transformer.experimental_attention_variant.dsa")
    configs = p.upstream("megatron.core.transformer.transformer_config")
    norm = p.upstream("megatron.core.transformer.torch_norm").WrappedTorchNorm
    config = configs.MLATransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        use_cpu_initialization=True,
        add_bias_linear=False,
        q_lora_rank=LORA,
        kv_lora_rank=64,
        qk_head_dim=128,
        qk_pos_emb_head_dim=ROTATED,
        v_head_dim=128,
        rope_type=rope_type,
        rotary_base=BASE,
        rotary_scaling_factor=SCALE,
        original_max_position_embeddings=ORIGINAL,
        beta_fast=FAST,
        beta_slow=SLOW,
        mscale=1.0,
        mscale_all_dim=1.0,
        apply_rope_fusion=False,
        experimental_attention_variant="dsa",
        dsa_indexer_n_heads=HEADS,
        dsa_indexer_head_dim=D,
        dsa_indexer_topk=TOPK,
        dsa_indexer_loss_coeff=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
    )
    parts = dsa.DSAIndexerSubmodules(
        linear_wq_b=Duplicated, linear_wk=Duplicated, k_norm=norm, linear_weights_proj=Duplicated
    )
    torch.manual_seed(p.seed)
    built = dsa.DSAIndexer(config, parts).to(torch.bfloat16)
    with torch.no_grad():
        built.k_norm.weight.add_(torch.randn(D) / 8)
        built.k_norm.bias.add_(torch.randn(D) / 8)
    return built.to(torch.cuda.current_device())


def angles(rope_type: str, device: Any) -> Tensor:
    """[S, ROTATED / 2] in fp64: position times frequency, interpolated between two corrections for YaRN."""
    pair = torch.arange(ROTATED // 2, dtype=torch.float64, device=device)
    frequency = BASE ** (-2 * pair / ROTATED)
    if rope_type == "yarn":  # a pair that turns more than FAST times over the original context keeps its frequency
        low, high = (
            ROTATED * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (FAST, SLOW)
        )
        low, high = max(math.floor(low), 0), min(math.ceil(high), ROTATED - 1)
        interpolated = ((pair - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (1 - interpolated) + frequency / SCALE * interpolated
    return torch.outer(torch.arange(S, dtype=torch.float64, device=device), frequency)


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """x [S, B, heads, D] in fp64: channels i and i + ROTATED / 2 of the first ROTATED turn by angle[s, i]."""
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    a, b, rest = x.split([ROTATED // 2, ROTATED // 2, D - ROTATED], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def exact(module: Any, x: Tensor, qr: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [S, B, HEADS, D], k [S, B, 1, D], scores [B, S, S] in fp64 from the module's own weights.

    Upstream applies one Hadamard rotation to all channels of q and k after RoPE: products do not change.
    """
    q = qr.double() @ module.linear_wq_b.weight.double().T
    k = x.double() @ module.linear_wk.weight.double().T
    k = nn.functional.layer_norm(k, (D,), module.k_norm.weight.double(), module.k_norm.bias.double(), 1e-5)
    q, k = rotate(q.view(S, B, HEADS, D), angle), rotate(k.view(S, B, 1, D), angle)
    weights = x.double() @ module.linear_weights_proj.weight.double().T / math.sqrt(HEADS * D)
    return q, k, torch.einsum("sbh,sbht->bst", weights, torch.einsum("sbhd,tbd->sbht", q, k[:, :, 0]).relu())


def chosen(scores: Tensor) -> Tensor:
    """[B, S, S] bool: the TOPK tokens that each query selects among those up to itself, all where there are fewer."""
    found = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(TOPK, dim=-1)[1], True)
    return found & scores.isfinite()


def off(measured: Tensor, reference: Tensor) -> float:
    """Relative error norm in fp64."""
    return ((measured.double() - reference).norm() / reference.norm()).item()


def check(p: probe.Probe, rope_type: str) -> None:
    """One kind of frequencies: the rotation alone in fp32, then the whole indexer in bf16."""
    module = indexer(p, rope_type)
    device = module.linear_wk.weight.device
    angle = angles(rope_type, device)
    made = module.rotary_pos_emb(S, packed_seq=False)
    made, mscale = made if isinstance(made, tuple) else (made, 1.0)
    p.guard(
        f"{rope_type}: angles",
        off(made[:, 0, 0], torch.cat([angle, angle], -1)),
        1e-6,  # fp32 throughout
        reference="fp64 position times frequency",
    )

    given = torch.randn(S, B, HEADS, D, device=device)  # fp32
    turned = module._apply_rope(given.clone(), made, mscale)
    p.error(
        f"{rope_type}: rotated queries, fp32",
        off(turned, rotate(given.double(), angle)),
        1e-5,
        # fp32 angles up to 256 are off by up to 2e-5, on a few pairs
        reference="fp64, first channels, halves",
        bug_above=0.1,
    )
    changed = (turned[1:] != given[1:]).flatten(0, 2).any(0).nonzero().flatten()
    p.note(f"{rope_type}: channels that change with the position", f"{changed[0]} to {changed[-1]} of {D}")
    # what holds for a rotation of any pairs of channels
    p.guard(
        f"{rope_type}: lengths of the rotated queries",
        off(turned.norm(dim=-1), given.double().norm(dim=-1)),
        1e-6,
        reference="before the rotation",
    )
    p.guard(
        f"{rope_type}: values at position 0, sorted",
        off(turned[0].sort()[0], given[0].double().sort()[0]),
        1e-6,
        reference="before the rotation",
    )
    same = module._apply_rope(given[:1].expand(S, -1, -1, -1).clone(), made, mscale).double()  # one query everywhere
    dot = torch.einsum("sbhd,tbhd->bhst", same, same)  # [B, HEADS, S, S], constant along each diagonal
    p.guard(
        f"{rope_type}: products that depend on more than the distance",
        off(dot[..., 1:, 1:], dot[..., :-1, :-1]),
        1e-5,
        reference="the same distance one position earlier",
    )

    x = torch.randn(S, B, HIDDEN, device=device).bfloat16()
    qr = torch.randn(S, B, LORA, device=device).bfloat16()
    future = torch.full((B, S, S), -math.inf, device=device).triu(1)  # additive causal mask
    turn, seen = module._apply_rope, []
    module._apply_rope = lambda *args, **options: seen.append(turn(*args, **options)) or seen[-1]
    with torch.no_grad():
        scores, indices = module.forward_with_scores(x, qr, future)  # [B, S, S], [B, S, TOPK]
    q, k, truth = exact(module, x, qr, angle)
    # projection, norm, rotation and (scores) Hadamard each round to bf16, 2**-9
    p.error(f"{rope_type}: index queries, bf16", off(seen[0], q), 2**-6, reference="fp64", bug_above=0.1)
    p.error(f"{rope_type}: index keys, bf16", off(seen[1], k), 2**-6, reference="fp64", bug_above=0.1)
    past = future == 0
    p.error(f"{rope_type}: index scores, bf16", off(scores[past], truth[past]), 2**-6, reference="fp64", bug_above=0.1)
    p.guard(
        f"{rope_type}: index scores of each token with itself, bf16",
        off(scores.diagonal(dim1=1, dim2=2), truth.diagonal(dim1=1, dim2=2)),
        2**-6,  # any rotation cancels
        reference="fp64",
    )
    picked = torch.zeros_like(past).scatter_(-1, indices.clamp(min=0), True) & past  # -1: fewer than TOPK so far
    best = chosen(truth + future)
    late = slice(2 * TOPK, None)  # queries that choose among at least twice as many tokens as they may keep
    wrong = (picked & ~best)[:, late].sum() / best[:, late].sum()
    p.error(
        f"{rope_type}: selected tokens that are wrong",
        100 * wrong.item(),
        5,
        unit="%",
        # bf16 swaps tokens whose scores are nearly equal
        reference="selection by fp64 scores",
        bug_above=15,
    )


def reproduce(p: probe.Probe) -> None:
    p.megatron_cpu()
    for rope_type in ("rope", "yarn"):
        check(p, rope_type)


if __name__ == "__main__":
    probe.main(reproduce, pack=15, package="megatron", minimal=minimal)
