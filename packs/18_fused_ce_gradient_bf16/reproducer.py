# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.2", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""The native fused cross entropy rounds the gradient of its logits to bfloat16, whatever dtype they have.

``fused_cross_entropy.calculate_gradients`` ends in ``.to(torch.bfloat16)``; autograd casts the result to the logits'
dtype afterwards. With fp32 logits sixteen bits of each gradient are lost, with fp16 ones three, and nothing says so.
The loss that is not fused gives the exact ones.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """One token over a vocabulary of eight, in fp32, beside torch's own cross entropy."""
    import torch
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x, target = torch.linspace(-1, 1, 8).view(1, 1, 8).requires_grad_(), torch.tensor([[3]])
    y = x.detach().clone().requires_grad_()
    fused_vocab_parallel_cross_entropy(x * 1.0, target, dist.group.WORLD).sum().backward()
    torch.nn.functional.cross_entropy(y.view(1, 8), target.view(1)).backward()
    print(x.grad, "should be", y.grad)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-6)


FUSED = "megatron.core.fusions.fused_cross_entropy"
# fp32: an exponential, a sum of some hundred terms, a quotient: a few times 2^-24. fp16: one rounding by 2^-12 at most
# relative to each number, and 2^-25 for numbers that fp16 has no more bits for. bf16: one rounding by 2^-9.
LIMITS = {torch.float32: 2e-6, torch.float64: 2e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}
BUG = 8e-4  # bf16's roundings are 2^-9 at most, evenly spread: 2^-9 / sqrt(3) = 1.1e-3 of the norm
REFERENCE = "softmax less one-hot, in fp64"
TOKENS, ROWS, WORDS = 6, 2, 96


def drawn(p: probe.Probe, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(p.seed + seed)
    return torch.randn(*shape, generator=generator)


def group(p: probe.Probe) -> Any:
    return p.upstream("megatron.core.parallel_state").get_tensor_model_parallel_group()


def loss_of(p: probe.Probe, logits: Tensor, target: Tensor) -> Tensor:
    """[s, b]. The loss overwrites fp32 logits, so it is given a copy of them."""
    made: Tensor = p.upstream(FUSED).fused_vocab_parallel_cross_entropy(logits * 1.0, target, group(p))
    return made


def exact(logits: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(loss [s, b], gradient [s, b, v]) in fp64."""
    wide = logits.detach().double()
    softmax = wide.softmax(-1)
    hot = torch.nn.functional.one_hot(target, wide.shape[-1])
    loss = wide.logsumexp(-1) - wide.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return loss, (softmax - hot) * weights.double().unsqueeze(-1)


def far(found: Tensor, true: Tensor) -> float:
    """The norm of the difference over that of the true one; inf for another dtype's or shape's."""
    if found.shape != true.shape:
        return math.inf
    return float((found.double() - true).norm() / true.norm())


class Case:
    """Logits [s, b, v] of a dtype, targets [s, b], and a weight for each token's loss, of which some are 0."""

    def __init__(
        self,
        p: probe.Probe,
        dtype: torch.dtype,
        sizes: tuple[int, int, int] = (TOKENS, ROWS, WORDS),
        *,
        kind: str = "drawn",
        scale: float = 2.0,
        seed: int = 0,
    ) -> None:
        s, b, v = sizes
        self.p, device = p, p.lane
        values = (scale * drawn(p, s, b, v, seed=seed)).to(device, dtype)
        self.leaf = values.requires_grad_()
        generator = torch.Generator().manual_seed(p.seed + seed + 1)
        self.target = torch.randint(v, (s, b), generator=generator).to(device)
        self.weights = drawn(p, s, b, seed=seed + 2).to(device)
        if kind == "masked":
            self.weights[::2] = 0
        if kind == "one for all":
            self.weights = torch.full((), 0.37, device=device).expand(s, b)

    def run(self) -> tuple[Tensor, Tensor]:
        """(loss, gradient of the logits)."""
        loss = loss_of(self.p, self.leaf, self.target)
        (grad,) = torch.autograd.grad(loss, self.leaf, self.weights)
        return loss.detach(), grad

    def errors(self) -> tuple[float, float]:
        before = self.leaf.detach().clone(), self.target.clone(), self.weights.clone()
        loss, grad = self.run()
        true = exact(self.leaf, self.target, self.weights)
        after = self.leaf.detach(), self.target, self.weights
        if grad.dtype != self.leaf.dtype or not all(map(torch.equal, before, after)):
            return math.inf, math.inf
        return far(loss, true[0]), far(grad, true[1])


def check_dtypes(p: probe.Probe) -> None:
    """Gradients by dtype; in bf16 bit for bit what they were, and losses in every dtype."""
    kept = list[Tensor]()
    for dtype in LIMITS:
        for kind in ("drawn", "masked", "one for all"):
            case = Case(p, dtype, kind=kind)
            loss, grad = case.errors()
            name = f"{str(dtype)[6:]}, {kind}"
            p.guard(f"{name}: loss", loss, 2e-6, reference="fp64")
            if dtype is torch.bfloat16:
                p.guard(f"{name}: gradient", grad, LIMITS[dtype], reference=REFERENCE)
                kept += case.run()
            else:
                p.error(f"{name}: gradient", grad, LIMITS[dtype], reference=REFERENCE, bug_above=BUG)
                kept.append(case.run()[0])
    p.digest("losses, and gradients in bfloat16", *kept)


def check_drawn(p: probe.Probe, count: int) -> None:
    """Sizes, dtypes, weights and ranges that nobody foresees."""

    def over(dtype: torch.dtype, sizes: tuple[int, int, int], kind: str, scale: float, seed: int) -> float:
        case = Case(p, dtype, sizes, kind=kind, scale=scale, seed=seed)
        loss, grad = case.errors()
        # probabilities next to 0 are below fp16's least number
        return max(loss / 2e-5, grad / (2e-5 if dtype in (torch.float32, torch.float64) else 5e-4))

    space = {
        "dtype": st.sampled_from([torch.float32, torch.float64, torch.float16]),
        "sizes": st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(2, 200)),
        "kind": st.sampled_from(["drawn", "masked", "one for all"]),
        "scale": st.sampled_from([0.1, 1.0, 3.0]),
        "seed": st.integers(0, 99),
    }
    p.drawn("drawn: errors over their limits", over, 1, space=space, count=count, reference=REFERENCE, bug_above=1.6)


def check_neighbours(p: probe.Probe) -> None:
    """Calls that overlap, another default dtype, what is written and what is kept."""
    first, second = Case(p, torch.float32, seed=5), Case(p, torch.bfloat16, seed=6)
    for name, order in {"the later one's first": (1, 0), "the earlier one's first": (0, 1)}.items():
        losses = [loss_of(p, case.leaf, case.target) for case in (first, second)]
        grads = dict[int, Tensor]()
        for i in order:
            case = (first, second)[i]
            (grads[i],) = torch.autograd.grad(losses[i], case.leaf, case.weights)
        off = far(grads[0], exact(first.leaf, first.target, first.weights)[1])
        p.error(f"two dtypes, backward of {name}", off, LIMITS[torch.float32], reference=REFERENCE, bug_above=BUG)
        p.digest(f"two dtypes, backward of {name}: bfloat16", grads[1])
    torch.set_default_dtype(torch.bfloat16)
    try:
        case = Case(p, torch.float32)
        off = case.errors()[1]
    finally:
        torch.set_default_dtype(torch.float32)
    p.error("bfloat16 by default: gradient", off, LIMITS[torch.float32], reference=REFERENCE, bug_above=BUG)
    # weighted in place, cast to bf16, the copy that the loss was given scaled; fp32: cast back and kept apart
    for dtype, most in {torch.bfloat16: 4.1, torch.float32: 5.1}.items():
        case = Case(p, dtype, (16, 4, 512))
        loss = loss_of(p, case.leaf, case.target)
        count = p.operators(lambda: torch.autograd.grad(loss, case.leaf, case.weights)).written  # noqa: B023
        p.guard(
            f"{str(dtype)[6:]}: numbers that a backward pass writes for each logit",
            count / case.leaf.numel(),
            most,
            reference="weighted, cast, and scaled",
        )
    for dtype in LIMITS:
        case = Case(p, dtype)
        given = case.leaf * 1.0
        kept = p.upstream(FUSED).fused_vocab_parallel_cross_entropy(given, case.target, group(p))
        (grad,) = torch.autograd.grad(kept, given, case.weights)
        same = grad.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
        p.guard(
            f"{str(dtype)[6:]}: a gradient in the logits' memory", same or grad.requires_grad, 0, reference="its own"
        )
    logits = Case(p, torch.bfloat16).leaf * 1.0
    alive, target = weakref.ref(logits), torch.zeros(TOKENS, ROWS, dtype=torch.long, device=logits.device)
    kept = p.upstream(FUSED).fused_vocab_parallel_cross_entropy(logits, target, group(p))
    del logits
    p.guard("logits in bfloat16 that the loss keeps", alive() is not None, 0, reference="its softmax alone")
    del kept


def check_ranks(p: probe.Probe) -> None:
    """Each of two ranks has half of the vocabulary."""

    def work(rank: int) -> None:
        p.megatron_cpu(tensor_model_parallel_size=2)
        for dtype in (torch.float32, torch.float16):
            case = Case(p, dtype)
            true = exact(case.leaf, case.target, case.weights)[1].chunk(2, -1)[rank]
            part = case.leaf.detach().chunk(2, -1)[rank].contiguous().requires_grad_()
            (grad,) = torch.autograd.grad(loss_of(p, part, case.target), part, case.weights)
            p.error(
                f"rank {rank} of 2, {str(dtype)[6:]}: gradient",
                far(grad, true),
                LIMITS[dtype],
                reference=REFERENCE,
                bug_above=BUG,
            )

    p.ranks(2, work)


def prepare(p: probe.Probe) -> None:
    """For ``minimal``."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling for a CPU takes longer than all that runs
        check_ranks(p)
    else:
        p.skip("two ranks", "two GPUs; the cpu lane has them")
    p.megatron_cpu()
    check_dtypes(p)
    check_drawn(p, 60 if p.lane == "cpu" else 15)
    check_neighbours(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=18, package="megatron", minimal=minimal, prepare=prepare)
