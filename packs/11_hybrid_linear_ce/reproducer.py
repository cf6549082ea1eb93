# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "megatron-core @ git+https://github.com/NVIDIA/Megatron-LM@d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1",
#     "torch>=2.8", "triton==3.6.0", "numpy", "einops", "hypothesis",
# ]
# ///
"""HybridModel crashes on its first loss under ``cross_entropy_fusion_impl="linear"``.

GPTModel hands hidden states, weight and labels to LinearCrossEntropyModule; HybridModel lost that branch and asks
``compute_language_model_loss`` for what it does not have: UnboundLocalError, as for any misspelt name. MTP heads pass
the fused module's arguments to a plain ColumnParallelLinear: TypeError. The kernels under the fused module exist for
compute capability 10.x only and are stood in for in fp64; everything above them is Megatron's.

The Mamba layer of the CUDA lane needs a checkout:
``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--needs mamba``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from reproducers import probe


def minimal() -> None:
    """The loss of a hybrid model of one MLP layer; needs Transformer Engine and a GPU."""
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
    from megatron.core.models.hybrid.hybrid_model import HybridModel
    from megatron.core.transformer import TransformerConfig

    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    fused = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "linear"}
    config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, **fused)
    model = HybridModel(config, hybrid_stack_spec, 96, 16, hybrid_layer_pattern="-").cuda()
    ids = torch.arange(16, device="cuda")[None]
    loss = model(ids, ids, None, labels=ids)  # UnboundLocalError
    print("loss:", loss.mean().item())


VOCAB, SEQUENCE, BATCH = 96, 16, 2
FP32 = 1e-5  # a few hundred fp32 additions; the kernels' stand-in is exact beside them


def no_branch() -> probe.Signature:
    """How compute_language_model_loss fails on an implementation that it does not have."""
    frame = "megatron/core/models/common/language_module/language_module.py"
    return probe.Signature("UnboundLocalError", "local variable 'loss'", frame)


def no_module() -> probe.Signature:
    """How an MTP head fails on an output layer that computes no loss."""
    message = r"forward\(\) got an unexpected keyword argument 'output_cross_entropy_loss'"
    return probe.Signature("TypeError", message, "megatron/core/transformer/multi_token_prediction.py")


class Kernels:
    """The two compiled kernels' contract in fp64 (reduction "none"), with a record of the arguments they were given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def forward_func(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        group: Any,
        reduction: str,
        ignore: int,
        sequence_parallel: bool,
    ) -> tuple[Any, ...]:
        """hidden [s, b, h] (s / ranks under sequence parallel), weight [v / ranks, h], labels [s, b]."""
        assert reduction == "none"
        self.calls.append(
            {
                "hidden": tuple(hidden.shape),
                "labels": tuple(labels.shape),
                "weight": weight.data_ptr(),
                "group": group,
                "sequence_parallel": sequence_parallel,
            }
        )
        whole = gather(hidden, group, 0) if sequence_parallel else hidden
        logits = gather(whole.flatten(0, 1).double() @ weight.double().t(), group, 1)  # [s b, v]
        loss = cross_entropy(logits, labels.flatten(), reduction="none", ignore_index=ignore)
        normalizer, valid = logits.logsumexp(1), (labels != ignore).sum()
        return loss.float(), normalizer, normalizer, valid, group.rank(), group.size(), whole

    def backward_func(
        self,
        dloss: Tensor,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        normalizer: Tensor,
        _: Tensor,
        valid: Tensor,
        reduction: str,
        ignore: int,
        group: Any,
        rank: int,
        size: int,
        sequence_parallel: bool,
    ) -> tuple[Tensor, Tensor]:
        flat, wide, kept = hidden.flatten(0, 1).double(), weight.double(), labels.flatten() != ignore
        probability = (flat @ wide.t() - normalizer[:, None]).exp()  # [s b, v / ranks]
        mine = torch.arange(len(weight), device=weight.device) + rank * len(weight)
        dlogits = (probability - (labels.flatten()[:, None] == mine).double()) * (dloss * kept)[:, None]
        dhidden = (dlogits @ wide).view_as(hidden)
        dist.all_reduce(dhidden, group=group)
        part = dhidden.chunk(size)[rank] if sequence_parallel else dhidden
        return part.to(hidden.dtype), (dlogits.t() @ flat).to(weight.dtype)


def gather(tensor: Tensor, group: Any, dim: int) -> Tensor:
    """The ranks' tensors of one shape, side by side."""
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim)


class Norm(nn.RMSNorm):
    """In place of Transformer Engine's; Megatron's wrapper of torch's refuses sequence parallel."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)


def settings(p: probe.Probe, pattern: str, impl: str, **options: Any) -> Any:
    """``impl`` "unfused" is Megatron's plain vocabulary-parallel cross entropy, as any is without ``fusion``."""
    fusion = options.pop("fusion", True)
    fused = {} if impl == "unfused" else {"cross_entropy_loss_fusion": fusion, "cross_entropy_fusion_impl": impl}
    mtp = {"mtp_num_layers": pattern.count("/"), "mtp_loss_scaling_factor": 0.5} if "/" in pattern else {}
    mup = {"use_mup": True, "mup_base_hidden_size": 24} if options.pop("mup", False) else {}  # logits x 0.375
    return p.upstream("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=len(pattern.split("/")[0]),
        hidden_size=64,
        num_attention_heads=4,
        normalization="RMSNorm",
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        is_hybrid_model=True,
        mamba_state_dim=16,
        mamba_head_dim=16,
        mamba_num_groups=2,
        use_mamba_mem_eff_path=False,  # the other path needs causal_conv1d
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        **fused,
        **mtp,
        **mup,
        **options,
    )


def stack(p: probe.Probe, pattern: str) -> Any:
    """Upstream's hybrid stack spec with Megatron's own layers where it names Transformer Engine's."""
    spec = p.upstream("megatron.core.transformer.spec_utils").ModuleSpec
    layers = p.upstream("megatron.core.tensor_parallel.layers")
    column, row = layers.ColumnParallelLinear, layers.RowParallelLinear
    bda = p.upstream("megatron.core.fusions.fused_bias_dropout").get_bias_dropout_add
    attention, mlp = p.upstream("megatron.core.transformer.attention"), p.upstream("megatron.core.transformer.mlp")
    layer = p.upstream("megatron.core.transformer.transformer_layer")
    block: Any = p.upstream("megatron.core.models.hybrid.hybrid_block")
    mtp = p.upstream("megatron.core.transformer.multi_token_prediction")
    block.TENorm = Norm  # the stack's final norm, which upstream does not take from the spec
    core = p.upstream("megatron.core.transformer.dot_product_attention").DotProductAttention
    causal = p.upstream("megatron.core.transformer.enums").AttnMaskType.causal
    inner = attention.SelfAttentionSubmodules(linear_qkv=column, core_attention=core, linear_proj=row)
    parts = {
        "attention_layer": spec(
            module=layer.TransformerLayer,
            submodules=layer.TransformerLayerSubmodules(
                input_layernorm=Norm,
                self_attn_bda=bda,
                self_attention=spec(
                    module=attention.SelfAttention, params={"attn_mask_type": causal}, submodules=inner
                ),
            ),
        ),
        "mlp_layer": spec(
            module=p.upstream("megatron.core.ssm.mlp_layer").MLPLayer,
            submodules=layer.TransformerLayerSubmodules(
                pre_mlp_layernorm=Norm,
                mlp_bda=bda,
                mlp=spec(module=mlp.MLP, submodules=mlp.MLPSubmodules(linear_fc1=column, linear_fc2=row)),
            ),
        ),
        "mtp_block_spec": spec(
            module=mtp.MultiTokenPredictionBlock,
            submodules=mtp.MultiTokenPredictionBlockSubmodules(
                layer_specs=[
                    spec(
                        module=mtp.MultiTokenPredictionLayer,
                        submodules=mtp.MultiTokenPredictionLayerSubmodules(
                            enorm=Norm, hnorm=Norm, eh_proj=column, mtp_model_layer=None, layer_norm=Norm
                        ),
                    )
                ]
            ),
        ),
    }
    if "M" in pattern:
        ssm, mixer = p.upstream("megatron.core.ssm.mamba_layer"), p.upstream("megatron.core.ssm.mamba_mixer")
        projections = mixer.MambaMixerSubmodules(in_proj=column, out_proj=row)
        parts["mamba_layer"] = spec(
            module=ssm.MambaLayer,
            submodules=ssm.MambaLayerSubmodules(
                norm=Norm, mamba_bda=bda, mixer=spec(module=mixer.MambaMixer, submodules=projections)
            ),
        )
    return spec(module=block.HybridStack, submodules=block.HybridStackSubmodules(**parts))


def hybrid(
    p: probe.Probe,
    pattern: str,
    impl: str,
    tied: bool = False,
    evaluation: bool = False,
    group: Any = None,
    **options: Any,
) -> Any:
    """``group``: for tensor parallelism, one that Megatron's global state does not know."""
    torch.manual_seed(p.seed)
    groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups()
    groups.tp = groups.tp if group is None else group
    # Megatron's log of MTP losses keeps the number of heads of the first model in a process
    p.upstream("megatron.core.transformer.multi_token_prediction").MTPLossLoggingHelper.tracker.clear()
    model = p.upstream("megatron.core.models.hybrid.hybrid_model").HybridModel(
        config=settings(p, pattern, impl, **options),
        hybrid_stack_spec=stack(p, pattern),
        vocab_size=VOCAB,
        max_sequence_length=SEQUENCE,
        hybrid_layer_pattern=pattern,
        share_embeddings_and_output_weights=tied,
        pg_collection=groups,
    )
    return model.to(torch.cuda.current_device()).train(not evaluation)


def gpt(p: probe.Probe, impl: str) -> Any:
    torch.manual_seed(p.seed)
    spec = p.upstream("megatron.core.models.gpt.gpt_layer_specs").get_gpt_layer_local_spec(normalization="RMSNorm")
    model = p.upstream("megatron.core.models.gpt.gpt_model").GPTModel(
        config=settings(p, "*", impl), transformer_layer_spec=spec, vocab_size=VOCAB, max_sequence_length=SEQUENCE
    )
    return model.to(torch.cuda.current_device())


def batch(count: int = BATCH, length: int = SEQUENCE) -> dict[str, Tensor]:
    """Token ids and positions [b, s], and the causal mask."""
    device, generator = torch.cuda.current_device(), torch.Generator().manual_seed(1)
    ids = torch.randint(VOCAB, (count, length + 1), generator=generator).to(device)
    positions = torch.arange(length, device=device).expand(count, length)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu(1)
    return {"input_ids": ids[:, :-1], "position_ids": positions, "attention_mask": mask, "labels": ids[:, 1:]}


def train(model: Any, **size: int) -> dict[str, Tensor]:
    """{"loss" [b, s]: …, parameter: gradient} under a different weight for every token, as a loss mask has it.

    And the loss without gradients, as validation has it.
    """
    model.zero_grad()
    loss = model(**batch(**size))
    loss.backward(torch.linspace(0.5, 1.5, loss.numel(), device=loss.device).view_as(loss))
    grads = {name: value.grad for name, value in model.named_parameters()}
    with torch.no_grad():
        return {"loss": loss.detach(), "loss without gradients": model(**batch(**size)), **grads}


def worst(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """Largest relative error norm over the loss and every gradient."""
    assert got.keys() == want.keys()
    return max(
        ((got[n].double() - w.double()).norm() / w.double().norm().clamp_min(1e-30)).item() for n, w in want.items()
    )


def check_linear(p: probe.Probe, kernels: Kernels, name: str, pattern: str, **options: Any) -> None:
    """The fused loss of a hybrid model, against the same model with the unfused one."""
    model = hybrid(p, pattern, "linear", **options)
    kernels.calls.clear()
    seen: list[tuple[int, ...]] = []
    model.output_layer.register_forward_hook(lambda module, args, made: seen.append(tuple(made[0].shape)))
    signature = no_module() if "/" in pattern else no_branch()
    got = p.attempt(f"{name}: loss and gradients", lambda: train(model), signature)
    if got is None:
        return
    plain = hybrid(p, pattern, "unfused", **options)
    plain.load_state_dict(model.state_dict())  # MambaMixer draws from a generator that the seed above does not reset
    want = train(plain)
    limit = 1e-3 if "M" in pattern else FP32  # the scan's backward multiplies in tf32 (2**-11)
    p.error(
        f"{name}: worst of loss and gradients",
        worst(got, want),
        limit,
        reference="the same model, unfused loss",
        bug_above=5e-3,
    )
    calls, ranks = 2 * (pattern.count("/") + 1), model.tp_group.size()  # with gradients and without
    weight = model.shared_embedding_or_output_weight() if options.get("tied") else model.output_layer.weight
    length = SEQUENCE // (ranks if model.config.sequence_parallel else 1)
    expected = {
        "hidden": (length, BATCH, 64),
        "labels": (SEQUENCE, BATCH),
        "weight": weight.data_ptr(),
        "group": model.tp_group,
        "sequence_parallel": model.config.sequence_parallel,
    }
    wrong = sum(call != expected for call in kernels.calls) + abs(len(kernels.calls) - calls)
    p.error(f"{name}: kernel calls missing, too many or with other arguments", wrong, 0, reference=f"{calls} calls")
    made = sum(shape[-1] == VOCAB // ranks for shape in seen)
    p.error(f"{name}: times the output layer made logits", made, 0, reference="never")
    # DDP's overlap_param_gather waits for gathered weights in such a hook
    p.guard(f"{name}: hooks of the output layer not called", abs(len(seen) - calls), 0, reference=f"{calls} calls")


def check_new_head(p: probe.Probe) -> None:
    """An output layer that a user puts in the place of the model's own, as for a resized vocabulary."""
    for name, pattern, signature in (("", "*-", no_branch()), (", MTP", "*-/*-", no_module())):
        models = []
        for impl in ("linear", "unfused"):
            models.append(model := hybrid(p, pattern, impl))
            model.output_layer = hybrid(p, pattern, impl).output_layer
            with torch.no_grad():
                model.output_layer.weight.mul_(1.5)
        got = p.attempt(f"a new output layer{name}: loss and gradients", partial(train, models[0]), signature)
        if got is not None:
            off = worst(got, train(models[1]))
            p.error(
                f"a new output layer{name}: worst of loss and gradients",
                off,
                FP32,
                reference="the same model, unfused loss",
                bug_above=5e-3,
            )


def check_drawn(p: probe.Probe) -> None:
    """Stacks, options and shapes that nobody can foresee, each with a second batch of another shape."""
    from hypothesis import strategies as st

    def measure(pattern: str, count: int, length: int, **options: bool) -> float:
        fused, plain = hybrid(p, pattern, "linear", **options), hybrid(p, pattern, "unfused", **options)
        sizes = ({"count": count, "length": length}, {"count": 1, "length": length + 1})
        return max(float(worst(train(fused, **size), train(plain, **size))) for size in sizes)

    names = ("tied", "evaluation", "mup", "calculate_per_token_loss", "mtp_detach_heads")
    space = {
        "pattern": st.sampled_from(["-", "*-", "-/-", "*-/*-", "*/-/-", "-/*/*/*"]),
        "count": st.integers(1, 3),
        "length": st.integers(4, 12),
        **{name: st.booleans() for name in names},
    }
    first = partial(measure, "-", 1, 4, **dict.fromkeys(names, False))
    if p.attempt("drawn: runs", first, no_branch()) is not None:
        p.drawn(
            "drawn: worst of loss and gradients",
            measure,
            FP32,
            space=space,
            count=8,
            reference="the same model, unfused loss",
            bug_above=5e-3,
        )


def check_unknown(p: probe.Probe) -> None:
    """A misspelt implementation is refused by name."""

    def refused() -> None:
        try:
            train(hybrid(p, "*-", "liner"))
        except ValueError as error:
            assert "liner" in str(error)
        else:
            raise AssertionError("an unknown implementation was accepted")

    p.attempt('impl "liner" is refused by name', refused, no_branch())


def check_neighbours(p: probe.Probe, kernels: Kernels) -> None:
    """Other implementations, logits, names in checkpoints, and GPTModel."""
    torch.use_deterministic_algorithms(p.lane == "cuda", warn_only=True)  # for the digests
    model = hybrid(p, "*-/*-", "native")
    native = train(model)
    unfused = train(hybrid(p, "*-/*-", "unfused"))
    # upstream's fused native loss rounds its gradient to bf16 whatever the dtype
    p.guard("impl native: worst of loss and gradients", worst(native, unfused), 1e-2, reference="unfused loss")
    p.digest("impl native: loss and gradients", *native.values())
    off = train(hybrid(p, "*-/*-", "linear", fusion=False))
    p.guard("impl linear, fusion off: worst of loss and gradients", worst(off, unfused), FP32, reference="unfused loss")
    plain = hybrid(p, "*-", "unfused")
    inputs = batch()
    labels = inputs.pop("labels")
    logits = plain(**inputs)  # [b, s, v]
    want = cross_entropy(logits.double().flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    p.guard("unfused loss", worst({"loss": train(plain)["loss"]}, {"loss": want}), FP32, reference="torch, fp64 logits")
    linear = hybrid(p, "*-", "linear")
    p.digest("logits of impl linear without labels", linear(**inputs))
    for name, options in {"MuP": {"mup": True}, "MuP, evaluation": {"mup": True, "evaluation": True}}.items():
        made = [hybrid(p, "*-", impl, **options)(**inputs).detach() for impl in ("linear", "unfused")]
        off = worst({"logits": made[0]}, {"logits": made[1]})
        p.guard(f"{name}: logits without labels", off, FP32, reference="unfused loss")
    names = "\n".join([*model.state_dict(), *model.sharded_state_dict(), *(n for n, _ in model.named_parameters())])
    p.digest("names of parameters and checkpoint entries", torch.tensor(list(names.encode())))
    kernels.calls.clear()
    got = p.guard_attempt("GPTModel impl linear: loss and gradients", lambda: train(gpt(p, "linear")))
    if got is not None:
        p.guard(
            "GPTModel impl linear: worst of loss and gradients",
            worst(got, train(gpt(p, "unfused"))),
            FP32,
            reference="the same model, unfused loss",
        )
        p.guard("GPTModel impl linear: kernel calls missing", abs(len(kernels.calls) - 2), 0, reference="2 calls")


def stand_in(p: probe.Probe) -> Kernels:
    """Replace what Megatron dispatches to at the bottom of the fused loss."""
    fusion: Any = p.upstream("megatron.core.fusions.fused_linear_cross_entropy")
    kernels = Kernels()
    fusion._get_platform = lambda: kernels
    return kernels


def check_rank(p: probe.Probe, rank: int) -> None:
    """One of two tensor-parallel ranks, each with half the vocabulary, and with sequence parallel half the tokens."""
    p.megatron_cpu(tensor_model_parallel_size=2)
    kernels = stand_in(p)
    for name, split in (("tensor parallel", False), ("tensor and sequence parallel", True)):
        options = {"tensor_model_parallel_size": 2, "sequence_parallel": split}
        check_linear(p, kernels, f"{name}, rank {rank} of 2", "*-/*-" if split else "*-", **options)


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself: no Transformer Engine, and the stand-in for the kernels."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    dist.destroy_process_group()
    stand_in(p)
    specs: Any = p.upstream("megatron.core.models.hybrid.hybrid_layer_specs")
    specs.hybrid_stack_spec = stack(p, "-")


def reproduce(p: probe.Probe) -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing here is about compiled code
    if p.lane == "cpu":
        p.upstream("megatron.core")  # once, for both ranks
    else:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # digests compare two processes
        p.namespace("mamba_ssm")  # its __init__ wants compiled extensions that nothing here uses
    if p.lane == "cpu" or torch.cuda.device_count() > 1:
        p.ranks(2, partial(check_rank, p))
    else:
        p.skip("tensor parallel", "needs two GPUs")
    p.megatron_cpu()
    kernels = stand_in(p)
    check_linear(p, kernels, "attention and MLP", "*-")
    check_linear(p, kernels, "tied embeddings", "*-", tied=True)
    check_linear(p, kernels, "MuP", "*-", mup=True)
    check_linear(p, kernels, "MTP", "*-/*-")
    check_linear(p, kernels, "MTP and MuP", "*-/*-", mup=True)
    check_linear(p, kernels, "two MTP heads", "*-/*-/*-")
    check_linear(p, kernels, "evaluation", "*-", evaluation=True)
    check_linear(p, kernels, "a group of one's own", "*-/*-", group=dist.new_group([0]))
    check_new_head(p)
    check_drawn(p)
    if p.lane == "cuda":
        check_linear(p, kernels, "Mamba, attention and MLP", "M*-")
    else:
        p.skip("Mamba, attention and MLP", "its scan needs a GPU")
    check_unknown(p)
    check_neighbours(p, kernels)


if __name__ == "__main__":
    probe.main(reproduce, pack=11, package="megatron", minimal=minimal, prepare=prepare)
