"""The ends of the model: the kernel paths of the losses and of MTP."""

from __future__ import annotations

from model.kinds.path import Code, Part, Path, Seam
from model.kinds.run import bf16, gpu

NO_PEFT = Seam(
    "no_peft",
    upstream="liger_kernel.utils",
    sha256="350213e934db56ba5251006ee84d728fe51c8dee7a2c90f1a5e7b55bab3cba2b",
    reason="liger-kernel imports peft only to know whether it is there, and it transformers and sklearn: 7 s",
    also=("b0f0f16daa0d9a5c3c903d6e3eddd311ec3f0a3b26d1d46fd9a9d6debaa3d027",),
)
HEAD = Seam(
    "head",
    upstream="megatron.core.tensor_parallel.layers:ColumnParallelLinear.forward",
    sha256="dac5d6cfeaa44ba64dddce0408a797439050439c0010b5fa3d5d25e8eff43a08",
    reason="the output layer hands hidden states to the loss, so that logits are never held whole",
    also=("8de69f2acd5f7e9bbb7fedc0e4546777b85e59587ee5af3e65d279cf025e8dca",),
)
LINEAR_LOSS = Seam(
    "linear_loss",
    upstream="megatron.core.fusions.fused_linear_cross_entropy:_get_platform",
    sha256="8150ea4d340c0a0d49b13133022e020337c892489bdf852676fa69a8c625b4a4",
    reason="on a CPU pack 10's PyTorch operations compute Megatron's own loss: its dispatch takes GPUs alone",
)
OURS = "model.layers.head:ours"
PARTS = (
    Part(
        "loss",
        "cross entropy",
        (
            Path(
                "liger_once",
                needs=(gpu,),
                # pack 09's
                code=Code(
                    "liger_kernel.ops.fused_linear_cross_entropy:fused_linear_cross_entropy_per_token_backward", "grad"
                ),
                seams=(HEAD,),
                install=OURS,
                kernels={"cross entropy": r"cross_?entropy"},
            ),
            Path("liger", needs=(gpu,), seams=(HEAD,), install=OURS, kernels={"cross entropy": r"cross_?entropy"}),
            Path("torch", seams=(HEAD,), install=OURS),
            Path(
                "linear",
                code=Code("megatron.core.models.hybrid.hybrid_model:HybridModel.__init__", "LinearCrossEntropyModule"),
                seams=(LINEAR_LOSS,),
                install="model.layers.head:megatrons",
                settings={"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "linear"},
                option="Megatron-LM's own linear cross entropy, of its branch dev: packs 10 and 11",
            ),
        ),
    ),
    Part(
        "mtp_proj",
        "MTP's MLP and entrance",
        (
            Path("bf16"),
            Path("fp8", needs=(gpu, bf16), option="products of MTP's MLP and entrance in FP8"),
        ),
    ),
)
