"""Mixture of experts: sigmoid router, selection-only bias (arXiv 2408.15664), non-gated GELU, one shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.kinds.kind import BF16, FP32, Frozen, Kind, Products, Seen, Shapes
from model.kinds.path import Part, Path, Seam
from model.kinds.run import Run, gpu, gpu_bf16

BIAS = "mlp.router.expert_bias"


class Dims(Frozen):
    """Of experts and router, and the router's coefficients."""

    count: int = 16
    topk: int = 4
    ffn: int = 896
    shared_ffn: int = 1024
    aux_loss_coeff: float = 1e-4
    bias_update_rate: float = 1e-3


@dataclass(frozen=True)
class Moe(Kind):
    dims: Dims

    name = "moe"
    label = "MoE"
    symbol = "E"
    spec = "model.layers.experts.install:layer"
    slot = "moe_layer"
    inside = ("pre_mlp_layernorm", "mlp")
    groups = ("router", "experts")
    # Routers too: arXiv 2502.16982 finds their spectra to gain most (section 3.4).
    matrices = frozenset({"linear_fc1", "linear_fc2", "router"})
    names = (
        ("pre_mlp_layernorm", "post_attention_layernorm"),
        (BIAS, "mlp.gate.e_score_correction_bias"),
        ("mlp.router", "mlp.gate"),
        ("mlp.experts.experts.linear_fc1", "mlp.experts.up_proj"),
        ("mlp.experts.experts.linear_fc2", "mlp.experts.down_proj"),
        ("mlp.shared_experts.linear_fc1", "mlp.shared_experts.up_proj"),
        ("mlp.shared_experts.linear_fc2", "mlp.shared_experts.down_proj"),
    )
    buffers = frozenset({BIAS})
    numbered = "mlp.experts"

    def parts(self) -> dict[str, Shapes]:
        """Experts as one tensor each projection, shared expert, router and its selection bias, the layer's norm."""
        e, h = self.dims, self.hidden
        found: Shapes = {
            "pre_mlp_layernorm.weight": (h,),
            "mlp.experts.experts.linear_fc1.weight": (e.count, e.ffn, h),
            "mlp.experts.experts.linear_fc2.weight": (e.count, h, e.ffn),
            "mlp.shared_experts.linear_fc1.weight": (e.shared_ffn, h),
            "mlp.shared_experts.linear_fc2.weight": (h, e.shared_ffn),
            "mlp.router.weight": (e.count, h),
            BIAS: (e.count,),
        }
        return {self.label: found}

    def products(self, seen: Seen) -> list[Products]:
        e, h = self.dims, self.hidden
        return [Products(self.label, seen.tokens * 2 * h * (2 * (e.topk * e.ffn + e.shared_ffn) + e.count))]

    def published(self, sequence: int) -> float:
        return 4 * self.hidden * (self.dims.ffn * self.dims.topk + self.dims.shared_ffn)

    def kept(self) -> float:
        e, h = self.dims, self.hidden
        return BF16 * (2 * h + e.topk * (2 * h + 2 * e.ffn) + 2 * e.shared_ffn) + FP32 * 2 * e.count

    def experts(self) -> int:
        return self.dims.count

    def dispatched(self) -> int:
        return self.dims.topk * self.hidden

    def spread(self) -> int:
        return self.dims.count * 2 * self.hidden * self.dims.ffn

    def idle(self) -> int:
        """Of the experts that a token's router leaves out."""
        return (self.dims.count - self.dims.topk) * 2 * self.hidden * self.dims.ffn

    def group(self, name: str) -> str:
        """The layer's norm is of its experts."""
        return "router" if ".router." in name else "experts"


WEIGHTED_EXPERTS = Seam(
    "weighted_experts",
    upstream="megatron.core.transformer.moe.experts:TEGroupedMLP.forward",
    sha256="a56ec1eb78c10de2173faead13b381f7517361890d3cf970e19c1fc69b8ccaf6",
    reason="the activation multiplies by the routers' weights, in one kernel: Megatron's own product must not",
    also=("bcad4277e071d0f6d69c145ef1c88886db88a7a968405a4438c110b35b4ffa78",),
    ours="the activation that multiplies is this model's kernel, which Megatron's experts do not call",
)


def _experts_elsewhere(size: Any, run: Run) -> str | None:
    return None if run.expert_parallel > 1 else "nothing is sent to other ranks"


def all_experts(size: Any, run: Run) -> str | None:
    """Whether every rank has all."""
    return "tokens come from other ranks" if run.expert_parallel > 1 else None


def _gpu_unless_asked(size: Any, run: Run) -> str | None:
    return None if run.paths.get("moe") == "grouped_mm" else gpu(size, run)


def grouped_mm(size: Any, run: Run) -> str | None:
    """Whether torch has it."""
    import torch

    name = "torch.nn.functional.grouped_mm"
    return None if hasattr(torch.nn.functional, "grouped_mm") else f"torch {torch.__version__} has no {name}"


def _uncaptured(size: Any, run: Run) -> str | None:
    return "CUDA graphs capture another dispatcher's routers" if run.cuda_graphs else None


PARTS = (
    Part(
        "moe",
        "MoE",
        layers=True,
        paths=(
            Path(
                "grouped_mm",
                needs=(_gpu_unless_asked, all_experts, grouped_mm, gpu_bf16, _uncaptured),
                settings={"moe_router_fusion": True},
                kernels={"grouped GEMM": r"grouped_mm|GroupProblemShape"},
            ),
            Path(
                "grouped_fused",
                needs=(gpu,),
                seams=(WEIGHTED_EXPERTS,),
                settings={"moe_router_fusion": True, "moe_grouped_gemm": True},
            ),
            Path("sequential"),
        ),
    ),
    Part(
        "shared",
        "shared experts",
        (
            Path("beside", needs=(gpu, _experts_elsewhere), settings={"moe_shared_expert_overlap": True}),
            Path("after"),
        ),
    ),
)
