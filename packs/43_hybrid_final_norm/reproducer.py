# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "transformer-engine==2.13.0", "torch>=2.8", "triton==3.6.0", "numpy", "einops",
#     "packaging", "pydantic", "hypothesis",
# ]
# ///
"""HybridStack's final norm is Transformer Engine's whatever its spec says, so that no stack is built without it.

``TransformerBlock`` takes the norm after its last layer from ``TransformerBlockSubmodules.layer_norm``, by default that
of Transformer Engine, of Apex or of torch, whichever is there. ``HybridStack`` calls ``TENorm`` by name. A spec that
names other norms for every layer, as one for hosts without Transformer Engine does, still ends in its ImportError; and
where Transformer Engine is installed the last norm is not of the kind of the others.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from reproducers import probe


def minimal() -> None:
    """A stack without layers, on a host without Transformer Engine."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    stack = HybridStack(config, HybridStackSubmodules(), layer_type_list=[], pg_collection=groups)
    print(stack.final_norm)


BLOCK = "megatron.core.models.hybrid.hybrid_block"
NO_ENGINE = probe.Signature(
    "ImportError", "Transformer Engine is not installed", "megatron/core/extensions/transformer_engine.py"
)
KINDS = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}
FP32 = 1e-6  # some hundred fp32 terms in a sum, and a root


class Own(nn.Module):
    """A norm as a spec names it, told apart by its class; it keeps what it was built with."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, scale: float = 1.0) -> None:
        super().__init__()
        self.built, self.scale = (config, hidden_size, eps), scale
        self.weight = nn.Parameter(torch.full((hidden_size,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def settings(p: probe.Probe, hidden: int, kind: str, eps: float) -> Any:
    return p.upstream("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=2,
        hidden_size=hidden,
        num_attention_heads=2,
        ffn_hidden_size=2 * hidden,
        normalization=kind,
        layernorm_epsilon=eps,
        add_bias_linear=False,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )


def parts(p: probe.Probe) -> dict[str, Any]:
    """Megatron's own dense layers, without Transformer Engine."""
    spec = p.upstream("megatron.core.transformer.spec_utils").ModuleSpec
    layers, mlp = p.upstream("megatron.core.tensor_parallel.layers"), p.upstream("megatron.core.transformer.mlp")
    linear = mlp.MLPSubmodules(linear_fc1=layers.ColumnParallelLinear, linear_fc2=layers.RowParallelLinear)
    inside = p.upstream("megatron.core.transformer.transformer_layer").TransformerLayerSubmodules(
        pre_mlp_layernorm=p.upstream("megatron.core.transformer.torch_norm").WrappedTorchNorm,
        mlp_bda=p.upstream("megatron.core.fusions.fused_bias_dropout").get_bias_dropout_add,
        mlp=spec(module=mlp.MLP, submodules=linear),
    )
    return {"mlp_layer": spec(module=p.upstream("megatron.core.ssm.mlp_layer").MLPLayer, submodules=inside)}


def stack(p: probe.Probe, config: Any, depth: int = 1, norms: dict[str, Any] | None = None, **options: Any) -> Any:
    """A hybrid stack of ``depth`` dense layers; ``norms``: what else its spec names."""
    block = p.upstream(BLOCK)
    groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups()
    torch.manual_seed(p.seed)
    submodules = block.HybridStackSubmodules(**parts(p), **(norms or {}))
    made = block.HybridStack(
        config, submodules, layer_type_list=["-"] * depth, pg_collection=groups, name="stack", **options
    )
    return made.to(torch.cuda.current_device())


def norm_fields(p: probe.Probe) -> list[str]:
    """Fields of the stack's spec that name a norm."""
    return [f.name for f in dataclasses.fields(p.upstream(BLOCK).HybridStackSubmodules) if "norm" in f.name]


def normed(x: Tensor, kind: str, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """The norm of x [..., h] in fp64."""
    x = x.double()
    if kind == "LayerNorm":
        x = x - x.mean(-1, keepdim=True)
    x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    return x if bias is None else x + bias.double()


def wrong(p: probe.Probe, hidden: int, kind: str, eps: float, depth: int, tokens: int) -> float:
    """Relative error of a stack's output, where its last norm has weights of its own, or 1 for another kind of norm."""
    config = settings(p, hidden, kind, eps)
    whole, bare = stack(p, config, depth), stack(p, config, depth, post_layer_norm=False)
    if type(whole.final_norm) is not KINDS[kind]:
        return 1.0
    generator = torch.Generator().manual_seed(p.seed)
    with torch.no_grad():
        for value in whole.final_norm.parameters():
            value.copy_(torch.randn(value.shape, generator=generator))
        bare.load_state_dict({k: v for k, v in whole.state_dict().items() if "final_norm" not in k}, strict=False)
        x = torch.randn(tokens, 2, hidden, generator=generator).to(torch.cuda.current_device())
        got, before = (one(x.clone(), attention_mask=None) for one in (whole, bare))
    norm = whole.final_norm
    want = normed(before, kind, norm.weight, getattr(norm, "bias", None), eps)
    return float((got.double() - want).norm() / want.norm())


def without_engine(p: probe.Probe) -> None:
    """As on a host without Transformer Engine."""
    sys.modules["transformer_engine"] = None  # type: ignore[assignment]
    p.megatron_cpu()
    for kind in KINDS:
        config = settings(p, 32, kind, 1e-5)
        made = p.attempt(f"a stack by {kind}", partial(stack, p, config), NO_ENGINE)
        if made is not None:
            p.error(
                f"{kind}: a last norm of another kind", type(made.final_norm) is not KINDS[kind], 0, reference="torch's"
            )
            keys = {key.partition(".")[2] for key in made.sharded_state_dict("stack.", ()) if "final_norm" in key}
            p.error(
                f"{kind}: keys of the last norm in a checkpoint", keys != named(kind), 0, reference="as its parameters"
            )
    for option in ("post_process", "post_layer_norm"):
        made = stack(p, settings(p, 32, "RMSNorm", 1e-5), **{option: False})
        p.guard(f"a last norm without {option}", hasattr(made, "final_norm"), 0, reference="there is none")
    if p.checks[0].state == "healthy":
        space = {
            "hidden": st.integers(2, 24).map(lambda half: 2 * half),
            "kind": st.sampled_from(sorted(KINDS)),
            "eps": st.sampled_from([1e-6, 1e-5, 1e-2, 1.0]),
            "depth": st.integers(0, 3),
            "tokens": st.integers(1, 9),
        }
        p.drawn("output of drawn stacks", partial(wrong, p), FP32, space=space, count=12, reference="norm in fp64")


def named(kind: str) -> set[str]:
    return {"final_norm.weight", "final_norm.bias"} if kind == "LayerNorm" else {"final_norm.weight"}


def by_spec(p: probe.Probe) -> None:
    """A spec that names its norms, without Transformer Engine."""
    sys.modules["transformer_engine"] = None  # type: ignore[assignment]
    p.megatron_cpu()
    fields = norm_fields(p)
    p.error(
        "last norms that a spec cannot name",
        not fields,
        0,
        reference="TransformerBlockSubmodules.layer_norm",
        bug_above=1,
    )
    for field in fields:
        spec = p.upstream("megatron.core.transformer.spec_utils").ModuleSpec
        parameters = spec(module=Own, params={"scale": 3.0})
        made = stack(p, settings(p, 32, "RMSNorm", 1e-5), norms={field: parameters}).final_norm
        p.error(f"a spec with parameters as {field}: a parameter lost", made.scale != 3.0, 0, reference="the spec's")
        for how, value in (("a class", Own), ("a spec", spec(module=Own))):
            for hidden, eps in ((32, 1e-5), (12, 0.25)):
                config = settings(p, hidden, "RMSNorm", eps)
                made = stack(p, config, norms={field: value}).final_norm
                off = type(made) is not Own or made.built[1:] != (hidden, eps) or made.built[0] is not config
                p.error(
                    f"{how} as {field}, {hidden} wide: another norm", off, 0, reference="as the spec and the config"
                )
        config = settings(p, 32, "RMSNorm", 1e-5)
        bare = stack(p, config, norms={field: Own}, post_process=False)
        p.error(f"{field} without post_process", hasattr(bare, "final_norm"), 0, reference="there is none")


def with_engine(p: probe.Probe) -> None:
    """Beside Transformer Engine its norm stays the last one unless the spec names another."""
    p.transformer_engine()
    p.megatron_cpu()
    engine = p.upstream("megatron.core.extensions.transformer_engine")
    p.guard("Transformer Engine is not seen", not engine.HAVE_TE, 0, reference="it is there")
    for kind in KINDS:
        made = stack(p, settings(p, 32, kind, 0.25)).final_norm
        theirs = type(made).__module__.startswith("transformer_engine") and type(made).__name__ == kind
        p.guard(
            f"{kind}: a last norm that is not Transformer Engine's", not theirs, 0, reference="Transformer Engine's"
        )
        p.guard(f"{kind}: its epsilon", abs(made.eps - 0.25), 0, reference="the config's")
    for field in norm_fields(p):
        made = stack(p, settings(p, 32, "RMSNorm", 0.25), norms={field: Own}).final_norm
        p.error(f"beside it {field} by a spec: another norm", type(made) is not Own, 0, reference="as the spec")


CASES: tuple[Callable[[probe.Probe], None], ...] = (without_engine, by_spec, with_engine)


def alone(p: probe.Probe, case: Callable[[probe.Probe], None]) -> None:
    """A case in a process that is the only rank of its world."""
    p.rank = type(p.rank)()
    case(p)


def reproduce(p: probe.Probe) -> None:
    p.ranks(len(CASES), lambda rank: alone(p, CASES[rank]))  # Megatron looks for Transformer Engine once, when imported


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself."""
    sys.modules["transformer_engine"] = None  # type: ignore[assignment]
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    probe.main(reproduce, pack=43, package="megatron", minimal=minimal, prepare=prepare)
