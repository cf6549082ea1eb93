"""Mixture of experts: the kernel paths of experts, shared experts and routers."""

from __future__ import annotations

from typing import Any

from model.kinds.path import Code, Part, Path, Seam
from model.kinds.run import Run, bf16, gpu, gpu_bf16, gpu_or_interpreter, triton

ROUTER_GATE = Seam(
    "router_gate",
    upstream="megatron.core.transformer.moe.router:Router.gating",
    sha256="642d0c2eb9ba6638b306d44a28621be1098d2ab63d14b0ee463194f529be5079",
    reason="Megatron's backward pass makes fp32 copies of the router's inputs and multiplies in TF32",
)
# Pack 39 makes the method that is replaced. What holds without it too is the method that both hand the loss to.
ROUTER_BALANCE = Seam(
    "router_balance",
    upstream="megatron.core.transformer.moe.router:TopKRouter.attach_and_log_load_balancing_loss",
    sha256="f9a34bfea0ed2b51278e32632e808d8ace5460170d611d198a9db03b9fc109d8",
    reason="two kernels forward and one back in place of pack 39's thirty operators each way, in each layer of experts",
)
ROUTER_STATE = Seam(
    "router_state",
    upstream="megatron.core.transformer.moe.router:TopKRouter._maintain_float32_expert_bias",
    sha256="be11ddf7927d90f7eeed8da065d807e9dfcf88e2d56ddaa1ee3fd15e6718a12e",
    reason="the bias is made fp32 again at the next forward, the counts never are: a bf16 count of 1,300 reads 1,240",
    also=("3ec187c1f959958161f52a138424778c53349fb5026f57ccecc4d28c55339242",),
)
WEIGHTED_EXPERTS = Seam(
    "weighted_experts",
    upstream="megatron.core.transformer.moe.experts:TEGroupedMLP.forward",
    sha256="a56ec1eb78c10de2173faead13b381f7517361890d3cf970e19c1fc69b8ccaf6",
    reason="the activation multiplies by the routers' weights, in one kernel: Megatron's own product must not",
    also=("bcad4277e071d0f6d69c145ef1c88886db88a7a968405a4438c110b35b4ffa78",),
)


def _experts_elsewhere(size: Any, run: Run) -> str | None:
    return None if run.expert_parallel > 1 else "nothing is sent to other ranks"


def _all_experts(size: Any, run: Run) -> str | None:
    return "tokens come from other ranks" if run.expert_parallel > 1 else None


def _gpu_unless_asked(size: Any, run: Run) -> str | None:
    return None if run.paths.get("moe") == "grouped_mm" else gpu(size, run)


def _grouped_mm(size: Any, run: Run) -> str | None:
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
                needs=(_gpu_unless_asked, _all_experts, _grouped_mm, gpu_bf16, _uncaptured),
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
    Part(
        "router",
        "routers' logits",
        (
            Path("parts", needs=(gpu, bf16), seams=(ROUTER_GATE,), install="model.layers.experts.install:gates"),
            Path("megatron"),
        ),
    ),
    Part(
        "balance",
        "routers' balance loss",
        (
            Path(
                "triton",
                needs=(triton, gpu_or_interpreter),
                code=Code("megatron.core.transformer.moe.router:TopKRouter._apply_packed_seq_aux_loss", "cu_seqlens"),
                seams=(ROUTER_BALANCE,),
                install="model.layers.experts.install:balances",
                kernels={"routing, sorting and indexing": r"^balance_"},
                graphs=False,
            ),
            Path("megatron"),
        ),
    ),
)
