# /// script
# requires-python = ">=3.11.0"
# dependencies = ["transformers==5.24.0", "torch>=2.8", "numpy", "hypothesis"]
# ///
"""DeepSeek-V4's routers compute experts' scores in the model's dtype, which bf16 cannot tell apart.

DeepSeek's own code casts tokens and the gate's weight to fp32 before their product, as transformers' DeepSeek-V3 does,
and as these routers did at first.
Here product, softplus and root are in bf16: several of a token's best experts often have one and the same score, so
that others are chosen than the weights say, and what is chosen is weighted by numbers of 8 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """The experts that a bf16 router chooses, against the same product in fp32."""
    import torch
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4TopKRouter

    torch.manual_seed(0)
    router = DeepseekV4TopKRouter(DeepseekV4Config(hidden_size=64))  # 6 of 256 experts
    router.weight.data = torch.randn(256, 64).div(8).bfloat16()
    tokens = torch.randn(1024, 64).bfloat16()
    _, _, chosen = router(tokens)
    scores = torch.nn.functional.softplus(tokens.float() @ router.weight.float().T).sqrt()
    right = (chosen.sort().values == scores.topk(6).indices.sort().values).all(-1)
    print(f"{int(right.sum())} of 1024 tokens have the experts of the highest scores")
    assert right.float().mean() > 0.99


HERE = "transformers.models.deepseek_v4"
KINDS = {"learned": "DeepseekV4TopKRouter", "hash": "DeepseekV4HashRouter"}
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
    "sigmoid": torch.sigmoid,
}
WORDS = 97
FP64 = "the router's formula in fp64"
WRONG = 0.01  # of tokens; in bf16 2 to 7 of a hundred
# a score: a sum of up to 256 products of 1 at most, a few units of 2**-24 each way; a weight is a quotient of sums of
# six of them. Measured below 1e-6; in bf16 a score is rounded by up to 2**-9 three times
FP32, ROUNDED = 1e-5, 1e-3


@functools.cache
def upstream(p: probe.Probe, name: str) -> Any:
    """Modules are checked when they are imported, not in each of many calls."""
    return p.upstream(f"{HERE}.{name}_deepseek_v4")


@dataclass(frozen=True)
class Case:
    """A router's sizes, its dtype, and how far its selection biases lie apart."""

    kind: str = "learned"
    source: bool = False
    tokens: int = 512
    hidden: int = 64
    experts: int = 64
    topk: int = 6
    score: str = "sqrtsoftplus"
    dtype: torch.dtype = torch.bfloat16
    bias: float = 0.1
    seed: int = 0


class Routed(NamedTuple):
    """Weights [T, E], 0 where an expert is not chosen; and gradients of tokens and of the gate's weight."""

    weights: Tensor
    tokens: Tensor
    gate: Tensor


class Router:
    """One router with random weights, biases in fp32, tokens [T, H] and their ids."""

    def __init__(self, p: probe.Probe, case: Case) -> None:
        self.case = case
        config = upstream(p, "configuration").DeepseekV4Config(
            vocab_size=WORDS,
            hidden_size=case.hidden,
            n_routed_experts=case.experts,
            num_experts_per_tok=case.topk,
            scoring_func=case.score,
        )
        self.module = getattr(upstream(p, "modular" if case.source else "modeling"), KINDS[case.kind])(config)
        generator = torch.Generator().manual_seed(p.seed + case.seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.module.weight.data = (random(case.experts, case.hidden) * case.hidden**-0.5).to(case.dtype)
        self.tokens, self.go = random(case.tokens, case.hidden).to(case.dtype), random(case.tokens, case.experts)
        self.ids = torch.randint(WORDS, (case.tokens,), generator=generator)
        if case.kind == "learned":
            self.module.e_score_correction_bias.copy_(random(case.experts) * case.bias)
        else:
            self.module.tid2eid.copy_(random(WORDS, case.experts).argsort(-1)[:, : case.topk])

    def call(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, weights, experts) as the router returns them."""
        given = (tokens,) if self.case.kind == "learned" else (tokens, self.ids)
        out: tuple[Tensor, Tensor, Tensor] = self.module(*given)
        return out

    def routed(self) -> tuple[Routed, Tensor]:
        """What the router gives, and its experts [T, topk]."""
        tokens = self.tokens.clone().requires_grad_()
        self.module.weight.grad = None
        _, weights, experts = self.call(tokens)
        whole = torch.zeros(self.go.shape, dtype=weights.dtype).scatter(1, experts, weights)
        (whole * self.go).sum().backward()
        gradients = (torch.zeros_like(x) if x.grad is None else x.grad for x in (tokens, self.module.weight))
        return Routed(whole.detach(), *gradients), experts

    def exact(self, experts: Tensor) -> Routed:
        """The same by the formula in fp64, for these experts."""
        tokens = self.tokens.double().requires_grad_()
        gate = self.module.weight.detach().double().requires_grad_()
        scores = SCORES[self.case.score](tokens @ gate.T).gather(1, experts)
        weights = scores / scores.sum(-1, keepdim=True) * self.module.routed_scaling_factor
        whole = torch.zeros(self.go.shape, dtype=torch.float64).scatter(1, experts, weights)
        (whole * self.go).sum().backward()
        assert tokens.grad is not None and gate.grad is not None
        return Routed(whole.detach(), tokens.grad, gate.grad)

    def misled(self, experts: Tensor) -> float:
        """The share of tokens whose experts are not those of the highest scores; a tie within FP32 has no highest."""
        scores = SCORES[self.case.score](self.tokens.double() @ self.module.weight.detach().double().T)
        scores = scores + self.module.e_score_correction_bias.double()
        chosen = torch.zeros(scores.shape, dtype=torch.bool).scatter(1, experts, True)
        least = scores.masked_fill(~chosen, torch.inf).amin(-1)
        most = scores.masked_fill(chosen, -torch.inf).amax(-1)
        wrong = (most - least > FP32) | (chosen.sum(-1) != self.case.topk)
        return float(wrong.double().mean())


def far(found: Tensor, true: Tensor) -> float:
    """The largest difference, relative to the largest number, or to 1/64 where that is less: of one expert it is 0."""
    return float((found.double() - true).abs().max() / true.abs().max().clamp(min=2.0**-6))


def unlike(found: Tensor, true: Tensor) -> float:
    """The largest difference of a weight, relative to itself; 0 where neither chooses."""
    return float(((found.double() - true).abs() / true.where(true > 0, 1)).max())


def check_fixed(p: probe.Probe) -> None:
    """Choice, weights and gradients by the file that is imported and by the one that it is generated from."""
    cases = {
        "64 experts": Case(),
        "256 experts": Case(experts=256, hidden=32),
        "biases far apart": Case(bias=2.0),
        "fp16": Case(dtype=torch.float16, experts=256, tokens=4096, hidden=32),
        "hash": Case(kind="hash"),
    }
    for name, case in cases.items():
        for source in (False, True):
            title = f"{'source' if source else 'module'}, {name}"
            router = Router(p, replace(case, source=source))
            before = [tensor.clone() for tensor in (router.tokens, *router.module.state_dict().values())]
            found, experts = router.routed()
            true = router.exact(experts)
            # fp16 has three bits more: fewer choices are wrong, and weights less so
            fine = 8 if case.dtype == torch.float16 else 1
            if case.kind == "learned":
                wrong = router.misled(experts)
                p.error(f"{title}: tokens misled", wrong, 0, reference=FP64, bug_above=WRONG / fine / 2)
            p.error(
                f"{title}: weights", unlike(found.weights, true.weights), FP32, reference=FP64, bug_above=ROUNDED / fine
            )
            # the two gradients are rounded to the dtype at their end, and in it a few times on the way
            for part in ("tokens", "gate"):
                p.guard(
                    f"{title}: gradient of {part}",
                    far(getattr(found, part), getattr(true, part)),
                    2.0**-5,
                    reference=FP64,
                )
            after = (router.tokens, *router.module.state_dict().values())
            changed = [a.dtype != b.dtype or not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
            p.guard(f"{title}: tensors changed", sum(changed), 0, reference="none")


def check_again(p: probe.Probe) -> None:
    """A second call after the gate's weight holds other numbers, as after a step of an optimizer."""
    for source in (False, True):
        title = "source" if source else "module"
        router, other = Router(p, Case(source=source)), Router(p, Case(source=source, seed=1))
        router.routed()
        router.module.weight.data.copy_(other.module.weight.data)
        found, experts = router.routed()
        p.error(f"{title}, again: tokens misled", router.misled(experts), 0, reference=FP64, bug_above=WRONG)
        true = router.exact(experts)
        p.error(
            f"{title}, again: weights", unlike(found.weights, true.weights), FP32, reference=FP64, bug_above=ROUNDED
        )


def check_drawn(p: probe.Probe) -> None:
    """Sizes, scores and biases that nobody can foresee."""
    from hypothesis import strategies as st

    def measure(kind: str, topk: int, **options: Any) -> float:
        router = Router(p, Case(kind=kind, topk=min(topk, options["experts"]), tokens=64, **options))
        found, experts = router.routed()
        true = router.exact(experts)
        misled = router.misled(experts) if kind == "learned" else 0.0
        gradients = max(far(found.tokens, true.tokens), far(found.gate, true.gate))
        return max(misled, unlike(found.weights, true.weights), float(gradients > 2.0**-4))

    space = {
        "kind": st.sampled_from(sorted(KINDS)),
        "source": st.booleans(),
        "hidden": st.integers(2, 96),
        "experts": st.integers(2, 96),
        "topk": st.integers(1, 8),
        "score": st.sampled_from(sorted(SCORES)),
        "dtype": st.sampled_from([torch.bfloat16, torch.float16]),
        "bias": st.sampled_from([0.0, 0.01, 0.5]),
        "seed": st.integers(0, 9999),
    }
    # relative to themselves, weights of scores near 0 are off by more units than those of the fixed cases
    p.drawn("drawn", measure, 1e-4, space=space, count=60, reference=FP64, bug_above=ROUNDED)


def model(p: probe.Probe, dtype: torch.dtype, implementation: str, *, source: bool = False) -> Any:
    """A model of a hash-routed and a learned layer; its biases stay in fp32, as from_pretrained leaves them."""
    torch.manual_seed(p.seed)
    config = upstream(p, "configuration").DeepseekV4Config(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=16,
        qk_rope_head_dim=8,
        q_lora_rank=16,
        o_groups=2,
        o_lora_rank=8,
        sliding_window=8,
        layer_types=["sliding_attention"] * 2,
        n_routed_experts=16,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        mlp_layer_types=["hash_moe", "moe"],
        hc_mult=2,
        hc_sinkhorn_iters=2,
        initializer_range=0.3,
    )
    made = upstream(p, "modeling").DeepseekV4ForCausalLM(config)
    made.set_experts_implementation(implementation)
    table = torch.randn(WORDS, 16, generator=torch.Generator().manual_seed(p.seed)).argsort(-1)[:, :3]
    made.model.layers[0].mlp.gate.tid2eid.copy_(table)
    held = made.model.layers[1].mlp.gate.e_score_correction_bias.clone()
    made.to(dtype)
    made.model.layers[1].mlp.gate.e_score_correction_bias = torch.nn.Buffer(held)
    if source:
        for module in made.modules():
            module.__class__ = vars(upstream(p, "modular")).get(type(module).__name__, type(module))
    return made.train()


def check_models(p: probe.Probe) -> None:
    """Whole models train in bf16 with each way to compute experts; in fp32 they are what they were, bit by bit."""
    ids = torch.randint(WORDS, (2, 24), generator=torch.Generator().manual_seed(p.seed))

    def step(made: Any, **more: Any) -> Any:
        out = made(ids, labels=ids, use_cache=False, **more)
        out.loss.backward()
        return out

    for implementation in ("eager", "batched_mm", "grouped_mm"):
        for source in (False, True):
            title = f"{'source' if source else 'module'}, model in bf16, {implementation}"
            made = model(p, torch.bfloat16, implementation, source=source)
            out = p.guard_attempt(title, functools.partial(step, made, output_router_logits=not source))
            if out is None:
                continue
            p.guard(f"{title}: logits of another dtype", out.logits.dtype != torch.bfloat16, 0, reference="bf16")
            gates = [layer.mlp.gate.weight.grad for layer in made.model.layers]
            lacking = sum(grad is None or grad.dtype != torch.bfloat16 or not bool(grad.any()) for grad in gates)
            p.guard(f"{title}: gates without a gradient", lacking, 0, reference="both learn")
    for source in (False, True):
        kept = list[Tensor]()
        for implementation in ("eager", "batched_mm"):
            made = model(p, torch.float32, implementation, source=source)
            out = step(made, output_router_logits=not source)  # upstream records those of the imported classes alone
            kept += [out.logits] if source else [out.logits, out.aux_loss, *out.router_logits]
            kept += [weight.grad for weight in made.parameters() if weight.grad is not None]
        p.digest(f"{'source' if source else 'module'}, model in fp32", *kept)


def reproduce(p: probe.Probe) -> None:
    torch.set_num_threads(1)  # tensors are small
    check_fixed(p)
    check_again(p)
    check_drawn(p)
    check_models(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=58, package="transformers", minimal=minimal)
