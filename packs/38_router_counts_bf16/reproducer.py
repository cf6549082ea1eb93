# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging"]
# ///
"""Float16Module casts the MoE router's counts of tokens and micro-batches to bf16, which counts to 256 and then rounds.

The counts are created in fp32. The router makes its ``expert_bias`` fp32 again in each forward, but not the counts that
decide in which direction the bias moves (``local_tokens_per_expert``), nor those of the global auxiliary loss
(``global_tokens_per_expert``, ``ga_steps``). An expert that is given one token in each micro-batch has 256 for ever.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from reproducers import probe


def minimal():
    """One token for each of 300 micro-batches, top-1 of two experts that are alike; as it stands on a GPU."""
    import torch
    from megatron.core import parallel_state, process_groups_config
    from megatron.core.transformer import TransformerConfig, module
    from megatron.core.transformer.moe.router import TopKRouter

    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    moe = {"num_moe_experts": 2, "moe_router_topk": 1, "moe_router_enable_expert_bias": True}
    sizes = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "bf16": True}
    config = TransformerConfig(**sizes, **moe, moe_router_score_function="sigmoid")
    groups = process_groups_config.ProcessGroupCollection.use_mpu_process_groups()
    router = TopKRouter(config, groups).cuda()
    wrapped = module.Float16Module(config, router)
    for _ in range(300):
        wrapped(torch.ones(1, 1, 8, device="cuda"))
    assert router.local_tokens_per_expert.sum() == 300, router.local_tokens_per_expert


EXPERTS, TOPK, RATE, COEFFICIENT = 8, 2, 2.0**-10, 2.0**-4
EXACT = {torch.bfloat16: 2**8, torch.float16: 2**11}  # up to here each whole number is one of the dtype
BF16 = 2.0**-6  # a gradient is a sum of bf16 products, rounded to bf16: 0.006 measured


class Routed:
    """A router under Float16Module whose experts are chosen by the tokens: expert i is fed by channel i."""

    def __init__(
        self, p: probe.Probe, dtype: torch.dtype, kind: str = "none", rate: float = RATE, bias: bool | None = None
    ) -> None:
        transformer = p.upstream("megatron.core.transformer")
        router = p.upstream("megatron.core.transformer.moe.router")
        groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups()
        self.config = transformer.TransformerConfig(
            num_layers=1,
            hidden_size=EXPERTS,
            num_attention_heads=1,
            num_moe_experts=EXPERTS,
            moe_router_topk=TOPK,
            moe_router_score_function="sigmoid",
            moe_router_dtype="fp32",
            moe_router_load_balancing_type=kind,
            moe_aux_loss_coeff=COEFFICIENT if kind == "global_aux_loss" else 0.0,
            moe_router_enable_expert_bias=kind == "none" if bias is None else bias,
            moe_router_bias_update_rate=rate,
            bf16=dtype == torch.bfloat16,
            fp16=dtype == torch.float16,
            params_dtype=dtype,
        )
        self.router = router.TopKRouter(self.config, groups).to(torch.cuda.current_device())
        self.router.set_layer_number(1)
        with torch.no_grad():
            self.router.weight.copy_(torch.eye(EXPERTS))
        float16 = p.upstream("megatron.core.transformer.module").Float16Module
        self.module: nn.Module = self.router if dtype == torch.float32 else float16(self.config, self.router)
        self.counted = [0] * EXPERTS

    def tokens(self, counts: list[int]) -> Tensor:
        """Tokens of which counts[i] go to expert i, [tokens, 1, channels]; none may have more than half."""
        places = [expert for expert, count in enumerate(counts) for _ in range(count)]
        half = len(places) // TOPK
        hidden = torch.zeros(half, EXPERTS)
        for token, pair in enumerate(zip(places[:half], places[half:], strict=True)):
            hidden[token, pair[0]], hidden[token, pair[1]] = 4.0, 2.0
        return hidden[:, None].to(torch.cuda.current_device())

    def forward(self, counts: list[int]) -> Any:
        if sum(counts) % TOPK or max(counts) > sum(counts) // TOPK:
            raise probe.CannotTest(f"tokens cannot be dealt out as {counts}")
        self.counted = [a + b for a, b in zip(self.counted, counts, strict=True)]
        return self.module(self.tokens(counts))

    def finalize(self, p: probe.Probe) -> None:
        """What follows the last micro-batch: counts are summed over ranks, and the bias moves."""
        finalize = importlib.import_module("megatron.core.distributed.finalize_model_grads")
        p.check_origin()
        finalize._update_router_expert_bias([self.module], self.config)
        finalize.reset_model_temporary_tensors(self.config, [self.module])


def drawn(seed: int, low: int, high: int) -> list[int]:
    """A count for each expert, from low to high, of which the sum is even."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(low, high + 1, (EXPERTS,), generator=generator).tolist()
    return [counts[0] + sum(counts) % 2, *counts[1:]]


def near(seed: int, base: int) -> list[int]:
    """Counts about ``base``, their mean, in a drawn order; half precision rounds four of them to the mean."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([1, -1, 1, -1, 3, -3, 0, 0])
    return (base + offsets[torch.randperm(EXPERTS, generator=generator)]).tolist()  # type: ignore[no-any-return]


def wrong_bias(router: Any, counts: list[int]) -> int:
    """Experts whose bias moved otherwise than towards the mean, which is exact in fp64."""
    mean = sum(counts) / EXPERTS
    exact = torch.tensor([RATE * ((mean > count) - (mean < count)) for count in counts], dtype=torch.float64)
    return int((router.expert_bias.double().cpu() != exact).sum())


def check_bias(p: probe.Probe, name: str, routed: Routed, batches: list[list[int]]) -> None:
    for counts in batches:
        routed.forward(counts)
    held = routed.router.local_tokens_per_expert.double().tolist()
    p.error(
        f"{name}: experts counted wrong",
        sum(a != b for a, b in zip(held, routed.counted, strict=True)),
        0,
        reference="tokens dealt out",
        bug_above=1,
    )
    routed.finalize(p)
    p.error(
        f"{name}: biases that move wrong",
        wrong_bias(routed.router, routed.counted),
        0,
        reference="sign of the mean less the count",
        bug_above=1,
    )
    p.guard(
        f"{name}: counts that are not set back",
        int(routed.router.local_tokens_per_expert.count_nonzero()),
        0,
        reference="0 after the update",
    )


def check_rate(p: probe.Probe) -> None:
    """By a rate that neither bf16 nor fp32 has, the bias moves to the last bit as without Float16Module."""
    generator, biases = torch.Generator().manual_seed(p.seed), list[Tensor]()
    start = torch.randn(EXPERTS, generator=generator) / 1000
    for dtype in (torch.bfloat16, torch.float32):
        routed = Routed(p, dtype, rate=1e-3)
        for batch in range(6):
            routed.forward(drawn(p.seed + batch, 64, 85))
            if batch == 0:  # fp32 in both from here on
                routed.router.expert_bias.copy_(start)
            routed.finalize(p)
        biases.append(routed.router.expert_bias.clone())
    p.error(
        "bf16, rate of 0.001: biases unlike those without Float16Module",
        int((biases[0] != biases[1]).sum()),
        0,
        reference="the same updates of the router alone",
        bug_above=1,
    )


def check_quantiles(p: probe.Probe, name: str, dtype: torch.dtype) -> None:
    """The bias by quantiles and their sum, which upstream keeps in fp32, hold what half precision does not."""
    routed, fine = Routed(p, dtype, "quantile_balancing", bias=False), 1 + 2.0**-20
    router, title = routed.router, f"{name}: biases and sums of quantiles that are rounded"
    if not hasattr(router, "qb_beta"):
        return p.skip(title, "this tree has no balancing by quantiles")
    routed.forward(near(p.seed, 8))
    for held in (router.qb_beta, router.qb_beta_accum):
        held.fill_(fine)
    routed.forward(near(p.seed, 8))
    lost = int((router.qb_beta.double() != fine).sum()) + (router.qb_beta_accum.dtype != torch.float32)
    p.guard(title, lost, 0, reference="fp32 from the first forward on")


def check_global(p: probe.Probe, name: str, dtype: torch.dtype, counts: list[int], batches: int) -> None:
    """Counts of the global auxiliary loss, and the gradient of the last micro-batch, which is of this loss alone."""
    routed = Routed(p, dtype, "global_aux_loss")
    for _ in range(batches):
        probs, _ = routed.forward(counts)
    router = routed.router
    held = [*router.global_tokens_per_expert.double().tolist(), router.ga_steps.item()]
    p.error(
        f"{name}: counts of the global loss wrong",
        sum(a != b for a, b in zip(held, [*routed.counted, batches], strict=True)),
        0,
        reference="tokens dealt out, and micro-batches",
        bug_above=1,
    )
    (probs * 0).sum().backward()
    exact = gradient(routed.tokens(counts), counts)
    error = (router.weight.grad.double().cpu() - exact).norm() / exact.norm()
    p.error(
        f"{name}: gradient of the global loss",
        float(error),
        BF16,
        reference="autograd in fp64 with exact counts",
        bug_above=2**-4,
    )


def check_both(p: probe.Probe, name: str, dtype: torch.dtype, base: int) -> None:
    """Biases and the global loss of one router, two global batches, and a second cast between them.

    Each micro-batch alone has more tokens than half precision counts. The gradient also tells whether a global batch
    begins anew.
    """
    routed, wrong = Routed(p, dtype, "global_aux_loss", bias=True), 0
    router, errors, turned = routed.router, list[float](), 0
    for batch, batches in enumerate((1, 2)):
        counts, start = near(p.seed + batch, base), router.expert_bias.double().cpu()
        for _ in range(batches):
            probs, _ = routed.forward(counts)
        held = [router.local_tokens_per_expert, router.global_tokens_per_expert, router.ga_steps[None]]
        exact = [*routed.counted, *routed.counted, batches]
        wrong += sum(a != b for a, b in zip(torch.cat([one.double() for one in held]).tolist(), exact, strict=True))
        router.weight.grad = None
        (probs * 0).sum().backward()
        want = gradient(routed.tokens(counts), counts)
        errors.append(float((router.weight.grad.double().cpu() - want).norm() / want.norm()))
        routed.finalize(p)
        mean = sum(routed.counted) / EXPERTS
        moved = torch.tensor([RATE * ((mean > count) - (mean < count)) for count in routed.counted]).double()
        turned += int((router.expert_bias.double().cpu() - start != moved).sum())
        routed.counted = [0] * EXPERTS
        router.to(dtype)  # the biases so far are of few bits, so that the cast changes none
    p.error(f"{name}: counts wrong", wrong, 0, reference="tokens dealt out, and micro-batches", bug_above=1)
    p.error(f"{name}: biases that move wrong", turned, 0, reference="sign of the mean less the count", bug_above=1)
    # so many tokens make it small: fp16's subnormals round it by 0.015; a micro-batch too many is off by a third
    p.error(
        f"{name}: gradient of the global loss",
        max(errors),
        2**-4,
        reference="autograd in fp64 with exact counts",
        bug_above=2**-2,
    )


def check_between(p: probe.Probe, name: str, dtype: torch.dtype) -> None:
    """A cast within a global batch, of counts that the dtype holds exactly: none is lost."""
    routed, counts = Routed(p, dtype, "global_aux_loss", bias=True), [1, 2, 3, 4, 4, 3, 2, 1]
    routed.forward(counts)
    router = routed.router
    router.to(dtype)
    routed.forward(counts)
    held = [router.local_tokens_per_expert, router.global_tokens_per_expert, router.ga_steps[None]]
    exact = [*routed.counted, *routed.counted, 2]
    wrong = sum(a != b for a, b in zip(torch.cat([one.double() for one in held]).tolist(), exact, strict=True))
    p.guard(f"{name}: counts lost by a cast within a global batch", wrong, 0, reference="tokens dealt out")


def check_held(p: probe.Probe, name: str, dtype: torch.dtype) -> None:
    """Whoever holds the counts, a CUDA graph for one, counts on: a forward replaces and moves none, and reads none."""
    routed, counts = Routed(p, dtype, "global_aux_loss", bias=True), [1, 2, 3, 4, 4, 3, 2, 1]
    router, names = routed.router, ("local_tokens_per_expert", "global_tokens_per_expert", "ga_steps")
    before = [getattr(router, one) for one in names]
    routed.forward(counts)
    same = [getattr(router, one) is held for one, held in zip(names, before, strict=True)]
    p.guard(f"{name}: counts that a forward replaces", len(names) - sum(same), 0, reference="the same tensors")
    places = [held.data_ptr() for held in before]
    routed.forward(counts)
    moved = [held.data_ptr() != place for held, place in zip(before, places, strict=True)]
    p.guard(f"{name}: counts that a later forward moves", sum(moved), 0, reference="where the first one left them")
    router.to(dtype)
    first, later = (p.waits(lambda: routed.forward(counts)).total() for _ in range(2))
    p.guard(f"{name}: waits of the forward after a cast", first - later, 0, reference="those of a later one")


def gradient(hidden: Tensor, counts: list[int]) -> Tensor:
    """Of the auxiliary loss with respect to the router's weight, fp64; each micro-batch has the same counts."""
    x = hidden[:, 0].double().cpu()
    weight = torch.eye(EXPERTS, dtype=torch.float64, requires_grad=True)
    scores = (x @ weight.T).sigmoid()
    mean = (scores / scores.sum(1, keepdim=True)).sum(0) / len(x)
    share = torch.tensor(counts, dtype=torch.float64) / (TOPK * len(x))
    (grad,) = torch.autograd.grad(EXPERTS * COEFFICIENT * (mean * share).sum(), weight)
    return grad


def check_neighbours(p: probe.Probe) -> None:
    """What holds in both arms: few tokens, fp32, no gradients wanted, the bias itself, and what is stored."""
    for dtype, limit in EXACT.items():
        name, routed = str(dtype).removeprefix("torch."), Routed(p, dtype)
        counts = drawn(p.seed, limit // 4, limit // 3)
        routed.forward(counts)
        held = routed.router.local_tokens_per_expert.tolist()
        p.guard(
            f"{name}, few tokens: experts counted wrong",
            sum(a != b for a, b in zip(held, counts, strict=True)),
            0,
            reference="tokens dealt out",
        )
        with torch.no_grad():
            routed.forward(counts)
        p.guard(
            f"{name}: counted without gradients",
            routed.router.local_tokens_per_expert.tolist() != held,
            0,
            reference="evaluation and recomputation count nothing",
        )
        routed.router.expert_bias.fill_(1 + 2.0**-20)
        probs, chosen = routed.forward(counts)
        kept = routed.router.expert_bias.double().eq(1 + 2.0**-20).all()
        p.guard(f"{name}: bias that was rounded", not bool(kept), 0, reference="fp32 from the first forward on")
        stored = {"local_tokens_per_expert", "global_tokens_per_expert", "ga_steps"} & set(routed.router.state_dict())
        p.guard(f"{name}: counts in the state dict", len(stored), 0, reference="counts are not stored")
        p.digest(f"{name}: probabilities and choice of experts", probs.detach(), chosen)
    plain = Routed(p, torch.float32)
    for _ in range(3):
        plain.forward(drawn(p.seed, 600, 610))
    held = plain.router.local_tokens_per_expert.tolist()
    p.guard("fp32: experts counted wrong", held != plain.counted, 0, reference="tokens dealt out")


def check_ranks(p: probe.Probe) -> None:
    """Two data-parallel ranks, each with so few tokens that only the sum of both is rounded."""

    def work(rank: int) -> None:
        p.megatron_cpu()
        routed = Routed(p, torch.bfloat16)
        parts = [EXPERTS * [248], near(p.seed, 248)]
        mine = parts[rank]
        routed.forward(mine)
        held = routed.router.local_tokens_per_expert.tolist()
        if rank == 0:
            p.guard("two ranks: experts of one counted wrong", held != mine, 0, reference="tokens dealt out")
        routed.finalize(p)
        if rank == 0:
            total = [sum(column) for column in zip(*parts, strict=True)]
            p.error(
                "two ranks: biases that move wrong",
                wrong_bias(routed.router, total),
                0,
                reference="sign of the mean less the count",
                bug_above=1,
            )

    p.ranks(2, work)


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself."""
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        check_ranks(p)
    else:
        p.skip("two ranks", "two GPUs; the cpu lane has them")
    p.megatron_cpu()
    check_bias(p, "bf16, one micro-batch", Routed(p, torch.bfloat16), [near(p.seed, 600)])
    check_bias(p, "fp16, one micro-batch", Routed(p, torch.float16), [near(p.seed + 1, 3000)])
    check_bias(p, "bf16, 300 micro-batches", Routed(p, torch.bfloat16), [[1, 1, 2, 2, 3, 3, 2, 2]] * 300)
    # neither count is their mean
    apart = [count + 2 * (count == 603) for count in near(p.seed + 3, 600)]
    check_bias(p, "bf16, a mean between two counts", Routed(p, torch.bfloat16), [apart])
    check_rate(p)
    check_quantiles(p, "bf16", torch.bfloat16)
    check_global(p, "bf16, 300 micro-batches", torch.bfloat16, [1, 1, 2, 2, 3, 3, 2, 2], 300)
    check_global(p, "bf16, drawn, 200 micro-batches", torch.bfloat16, drawn(p.seed + 2, 5, 14), 200)
    check_both(p, "bf16, bias and global loss, two global batches", torch.bfloat16, 600)
    check_both(p, "fp16, bias and global loss, two global batches", torch.float16, 3000)
    check_between(p, "bf16", torch.bfloat16)
    check_between(p, "fp16", torch.float16)
    check_held(p, "bf16", torch.bfloat16)
    check_neighbours(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=38, package="megatron", minimal=minimal, prepare=prepare)
