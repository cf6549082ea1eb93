"""Mixture of experts: sqrt(softplus) scores, experts by the best of them or by the token's id, gated experts whose gate
and values are clamped before their product."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from model.kinds.deepseek_v4.hyper import Wrapped, wrapped_makers, wrapped_names
from model.kinds.kind import BF16, FP32, Frozen, Products, Seen, Shapes
from model.kinds.moe import all_experts, grouped_mm
from model.kinds.path import Part, Path
from model.kinds.run import bf16, gpu

PART, BIASES = "MoE", "selection biases"  # rows of tables
AROUND = "mlp_hyper_connection"
TABLE = "mlp.router.tid2eid"


class Dims(Frozen):
    """Of experts and routers, and the routers' coefficients. ``ffn``: of each routed and each shared expert;
    ``scaling``: of the routed experts' weights, whose sum is one before; ``clamp``: of the gate from above and of the
    values from both sides.
    """

    count: int = 256
    topk: int = 6
    shared: int = 1
    ffn: int = 2048
    scaling: float = 1.5
    clamp: float = 10.0
    aux_loss_coeff: float = 1e-4
    bias_update_rate: float = 1e-3


@dataclass(frozen=True)
class Moe(Wrapped):
    """What both kinds of router share."""

    dims: Dims

    around = AROUND
    symbol = "E"
    inside = ("pre_mlp_layernorm", "mlp")
    groups = ("router", "experts", "mhc")
    matrices = frozenset({"linear_fc1", "linear_fc2", "router", "mapping_proj"})
    names = (
        *wrapped_names(AROUND, "ffn_hc"),
        ("pre_mlp_layernorm", "post_attention_layernorm"),
        ("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"),
        ("mlp.router", "mlp.gate"),
        ("mlp.experts.experts.linear_fc1.weight", "mlp.experts.gate_up_proj"),
        ("mlp.experts.experts.linear_fc2.weight", "mlp.experts.down_proj"),
        ("mlp.shared_experts.linear_fc1", "mlp.shared_experts.gate_up_proj"),
        ("mlp.shared_experts.linear_fc2", "mlp.shared_experts.down_proj"),
    )
    cuts = MappingProxyType(
        {
            "mlp.shared_experts.gate_up_proj.weight": (
                "mlp.shared_experts.gate_proj.weight",
                "mlp.shared_experts.up_proj.weight",
            )
        }
    )
    makers = (
        *wrapped_makers("ffn_hc", "hc_ffn"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate.e_score_correction_bias", "ffn.gate.bias"),
        ("mlp.gate", "ffn.gate"),
        ("mlp.experts", "ffn.experts"),
        ("mlp.shared_experts.gate_proj", "ffn.shared_experts.w1"),
        ("mlp.shared_experts.down_proj", "ffn.shared_experts.w2"),
        ("mlp.shared_experts.up_proj", "ffn.shared_experts.w3"),
    )
    makers_experts = MappingProxyType({"gate_up_proj": ("w1.weight", "w3.weight"), "down_proj": ("w2.weight",)})
    buffers = tables = frozenset({TABLE})

    def parts(self) -> dict[str, Shapes]:
        """Experts as one tensor each projection, gate and values together; shared experts, router, the layer's norm."""
        e, h = self.dims, self.hidden
        found: Shapes = {
            "pre_mlp_layernorm.weight": (h,),
            "mlp.experts.experts.linear_fc1.weight": (e.count, 2 * e.ffn, h),
            "mlp.experts.experts.linear_fc2.weight": (e.count, h, e.ffn),
            "mlp.shared_experts.linear_fc1.weight": (2 * e.shared * e.ffn, h),
            "mlp.shared_experts.linear_fc2.weight": (h, e.shared * e.ffn),
            "mlp.router.weight": (e.count, h),
        }
        return {PART: found, **self.around_parts()}

    @property
    def _expert(self) -> int:
        """Parameters of one."""
        return 3 * self.hidden * self.dims.ffn

    def products(self, seen: Seen) -> list[Products]:
        """A router by hash has a score for each expert too."""
        e = self.dims
        lines = (e.topk + e.shared) * self._expert + self.hidden * e.count
        return [Products(PART, seen.tokens * 2 * lines), *self.around_products(seen)]

    def published(self, sequence: int) -> float:
        """Without routers."""
        return 2 * (self.dims.topk + self.dims.shared) * self._expert

    def kept(self) -> float:
        """The normed input; of each expert of a token its input, gate, values and product, and its output; the
        router's scores twice."""
        e, h = self.dims, self.hidden
        channels = h + e.topk * (2 * h + 3 * e.ffn) + 3 * e.shared * e.ffn
        return self.around_kept() + BF16 * channels + FP32 * 2 * e.count

    def experts(self) -> int:
        return self.dims.count

    def dispatched(self) -> int:
        return self.dims.topk * self.hidden

    def spread(self) -> int:
        return self.dims.count * self._expert

    def idle(self) -> int:
        """Of the experts that a token's router leaves out."""
        return (self.dims.count - self.dims.topk) * self._expert

    def group(self, name: str) -> str:
        """The layer's norm is of its experts."""
        return "mhc" if "_hyper_connection." in name else "router" if ".router." in name else "experts"


class TopkMoe(Moe):
    """Experts by the best scores, to which a bias is added for the choice alone (arXiv 2408.15664).

    The bias counts as a parameter, as in DeepSeek's own model, though no gradient trains it.
    """

    name = "topk_moe"
    spec = "model.layers.deepseek_v4.hybrid.install:topk_moe"
    slot = "moe_layer"
    label = "MoE, learned router"

    def parts(self) -> dict[str, Shapes]:
        return super().parts() | {BIASES: {"mlp.router.expert_bias": (self.dims.count,)}}


@dataclass(frozen=True)
class HashMoe(Moe):
    """Experts by a table of token ids, which is no parameter; their weights are scores that train the router."""

    vocab: int

    name = "hash_moe"
    spec = "model.layers.deepseek_v4.hybrid.install:hash_moe"
    slot = "mlp_layer"  # of a dense MLP, of which there are none: Megatron builds and calls it as a mixture of experts
    label = "MoE, hash router"

    def parts(self) -> dict[str, Shapes]:
        found = super().parts()
        return found | {PART: found[PART] | {TABLE: (self.vocab, self.dims.topk)}}


PARTS = tuple(
    Part(
        kind.name,
        kind.label,
        (
            Path(
                "grouped_mm",
                needs=(all_experts, grouped_mm, gpu, bf16),
                kernels={"grouped GEMM": r"grouped_mm|GroupProblemShape", "experts' activation": r"^weighted_swiglu"},
            ),
            Path("torch"),
        ),
        layers=True,
    )
    for kind in (TopkMoe, HashMoe)
)
