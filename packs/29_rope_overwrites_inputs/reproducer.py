# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""Liger's RoPE rotates the caller's queries and keys in place, and the gradients that its backward is given.

It does so where they lie in memory as Hugging Face's models make them, [batch, tokens, heads, head], seen as
[batch, heads, tokens, head]. Whoever reads them after the call reads rotated ones, a layer that saved them as its
output has a wrong gradient, and so has another reader of the gradient of the rotated ones. Nothing raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed.tensor  # Liger 0.7.0 uses it without an import of its own
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """Queries of a model's layout, before and after."""
    import torch
    from liger_kernel.transformers import liger_rotary_pos_emb

    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k = (torch.randn(1, 8, 4, 16, device=device).transpose(1, 2) for _ in range(2))
    angles = torch.outer(torch.arange(8), 0.5 ** torch.arange(8).repeat(2)).to(device)[None]
    before = q.clone()
    liger_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    print(f"queries changed by up to {(q - before).abs().max():.3f}")
    torch.testing.assert_close(q, before)


FP64 = "eager fp64"
# fp32: four products a number, and projections of at most 64 terms at 2**-23; what was rotated is off by O(1)
FP32, BUG = 2e-5, 0.1
BF16 = 3e-2  # what leaves in bf16 is rounded to 2**-9
Pair = tuple[Tensor, Tensor]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Hugging Face's RoPE: x [batch, heads, tokens, head], cos and sin [1 or batch, tokens, rotated], halves paired."""
    wide = cos.shape[-1]
    part, rest = x[..., :wide], x[..., wide:]
    a, b = part.chunk(2, -1)
    return torch.cat([part * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None], rest], -1)


def eager(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    return rotate(q, cos, sin), rotate(k, cos, sin)


@dataclass(frozen=True)
class Case:
    """q and k [batch, heads, tokens, head], cos and sin [1 or batch, tokens, rotated], and gradients of q and k.

    q, k and the gradients lie in memory as [batch, tokens, heads, head].
    """

    q: Tensor
    k: Tensor
    cos: Tensor
    sin: Tensor
    dq: Tensor
    dk: Tensor

    @classmethod
    def make(
        cls,
        sizes: tuple[int, int, int, int, int],
        device: str,
        dtype: torch.dtype,
        seed: int,
        rotated: int = 0,
        each: bool = False,
        plain: bool = False,
    ) -> Case:
        """``sizes``: batch, tokens, heads of q and of k, head; ``each``: angles of its own for each row of the batch.

        ``rotated``: so many numbers of a head, 0 for all. ``plain``: a memory of [batch, heads, tokens, head].
        """
        batch, tokens, n_q, n_k, head = sizes
        generator = torch.Generator().manual_seed(seed)

        def draw(heads: int) -> Tensor:
            made = torch.randn(batch, tokens, heads, head, generator=generator).to(device, dtype).transpose(1, 2)
            return made.contiguous() if plain else made

        half = (rotated or head) // 2
        start = torch.randint(0, 50, (batch if each else 1, 1, 1), generator=generator)
        angles = (start + torch.arange(tokens)[:, None]) * 100.0 ** (-torch.arange(half) / half)
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
        return cls(draw(n_q), draw(n_k), cos, sin, draw(n_q), draw(n_k))

    def widened(self) -> Case:
        """The same in fp64."""
        return Case(*(t.double() for t in (self.q, self.k, self.cos, self.sin, self.dq, self.dk)))

    def run(self, rope: Callable[..., Pair], use: Callable[..., Tensor]) -> list[Tensor]:
        """What ``use`` makes of q, k, a rope for them and the case, and the gradients of its sum."""
        # clones keep the strides
        leaves = [t.detach().clone().requires_grad_() for t in (self.q, self.k)]
        # what a layer returns, not a leaf
        q, k = (t * 1.0 for t in leaves)
        made = use(q, k, lambda q, k: rope(q, k, self.cos, self.sin), self)
        return [made.detach(), *torch.autograd.grad(made.sum(), leaves)]


def worst(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest of max|got - want| / max|want|, NaN where one is not finite."""
    errors = [(g.double() - w).abs().max() / (w.abs().max().item() or 1.0) for g, w in zip(got, want, strict=True)]
    return torch.stack(errors).max().item()


Rope = Callable[[Tensor, Tensor], Pair]


def weighed(q: Tensor, k: Tensor, case: Case) -> Tensor:
    """Every number of q and k times the gradient that it shall have."""
    return torch.cat([(q * case.dq).flatten(), (k * case.dk).flatten()])


def plain_use(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    return weighed(*rope(q, k), case)


def read_before(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    """A term on what was not rotated that is made before, and saves nothing of it."""
    term = weighed(q, k, case)
    return term + plain_use(q, k, rope, case)


def read_after(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    """The same term made after the call, as a norm of queries that is logged or penalised."""
    used = plain_use(q, k, rope, case)
    return used + weighed(q, k, case)


def saved_square(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    """A term made before whose backward reads what was not rotated."""
    term = torch.cat([q.square().flatten(), k.square().flatten()])
    return term + plain_use(q, k, rope, case)


def saved_output(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    """An activation before it whose backward reads what it returned."""
    return plain_use(torch.tanh(q), torch.tanh(k), rope, case)


def twice(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    """The same queries and keys rotated for two uses."""
    return plain_use(q, k, rope, case) + 2 * plain_use(q, k, rope, case)


def shared_gradient(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    """Something that was made before is added to what was rotated: autograd hands both the same gradient."""
    added_q, added_k = torch.tanh(3 * q), torch.tanh(3 * k)
    rotated_q, rotated_k = rope(q, k)
    return weighed(rotated_q + added_q, rotated_k + added_k, case)


def expanded(q: Tensor, k: Tensor, rope: Rope, case: Case) -> Tensor:
    """A gradient of one number for all."""
    return torch.cat([t.flatten() for t in rope(q, k)])


BROKEN = {
    "read after the call": read_after,
    "square saved before": saved_square,
    "an activation before": saved_output,
    "rotated twice": twice,
    "something added to the rotated": shared_gradient,
}
FINE = {"alone": plain_use, "read before the call": read_before, "one gradient for all": expanded}


def ropes(p: probe.Probe) -> Iterator[tuple[str, Callable[..., Pair]]]:
    """Ways to the operator."""
    yield "autograd function", p.upstream("liger_kernel.ops").LigerRopeFunction.apply
    yield "function", p.upstream("liger_kernel.transformers.functional").liger_rope
    yield "patch of models", p.upstream("liger_kernel.transformers.rope").liger_rotary_pos_emb


def uses(
    p: probe.Probe, name: str, rope: Callable[..., Pair], case: Case, limit: float, chosen: tuple[str, ...] = ()
) -> None:
    """What each use makes, or those that are chosen, and its gradients."""
    wide = case.widened()
    for use, call in {**BROKEN, **FINE}.items():
        if chosen and use not in chosen:
            continue
        got, want = case.run(rope, call), wide.run(eager, call)
        if use in BROKEN:
            p.error(f"{name}, {use}", worst(got, want), limit, reference=FP64, bug_above=BUG)
        else:
            p.guard(f"{name}, {use}", worst(got, want), limit, reference=FP64)
            p.digest(f"{name}, {use}, bits", *got)


def one_token(p: probe.Probe, rope: Callable[..., Pair], case: Case) -> None:
    """One token of each row, as in decoding, in a memory of [batch, heads, 1, head]: it is contiguous either way."""
    q, k, cos, sin = (t[:, :, :1].clone() for t in (case.q, case.k, case.cos[:, None], case.sin[:, None]))
    q, k = (torch.empty(t.shape, device=t.device).copy_(t) for t in (q, k))
    want = eager(*(t.double() for t in (q, k, cos[:, 0], sin[:, 0])))
    got = rope(q, k, cos[:, 0], sin[:, 0])
    p.error("one token of two rows", worst(list(got), list(want)), FP32, reference=FP64, bug_above=BUG)


def inputs(p: probe.Probe, name: str, rope: Callable[..., Pair], case: Case) -> None:
    """q, k, and the gradients that the backward is given, after the calls; with gradients and without."""
    modes = {"": torch.enable_grad, ", no_grad": torch.no_grad, ", inference_mode": torch.inference_mode}
    for label, mode in modes.items():
        q, k = case.q.clone(), case.k.clone()
        with mode():
            out = rope(q, k, case.cos, case.sin)
        off = max((q - case.q).abs().max().item(), (k - case.k).abs().max().item())
        p.error(f"{name}: q and k after the call{label}", off, 0, reference="as they were", bug_above=BUG)
        p.guard(f"{name}: rotated{label}", worst(list(out), list(eager(*wide4(case)))), FP32, reference=FP64)
        where = sum(o.transpose(1, 2).is_contiguous() for o in out)
        p.guard(f"{name}: results in another memory{label}", 2 - where, 0, reference="[batch, tokens, heads, head]")
    q, k = case.q.clone().requires_grad_(), case.k.clone().requires_grad_()
    dq, dk = case.dq.clone(), case.dk.clone()
    torch.autograd.grad(rope(q * 1.0, k * 1.0, case.cos, case.sin), (q, k), (dq, dk))
    off = max((dq - case.dq).abs().max().item(), (dk - case.dk).abs().max().item())
    p.error(f"{name}: caller's gradients after the backward", off, 0, reference="as they were", bug_above=BUG)
    want = torch.autograd.grad(
        list(eager(*(leaves := [t.requires_grad_() for t in wide4(case)[:2]]), *wide4(case)[2:])),
        leaves,
        [case.dq.double(), case.dk.double()],
    )
    for which in (0, 1):  # one of the two alone wants a gradient
        pair = [case.q.clone(), case.k.clone()]
        pair[which].requires_grad_()
        out = rope(pair[0] * 1.0, pair[1] * 1.0, case.cos, case.sin)
        (got,) = torch.autograd.grad(out[which], pair[which], (case.dq, case.dk)[which].clone())
        p.guard(f"{name}: {'qk'[which]} alone wants a gradient", worst([got], [want[which]]), FP32, reference=FP64)


def wide4(case: Case) -> list[Tensor]:
    return [t.detach().double() for t in (case.q, case.k, case.cos, case.sin)]


class Made(TorchDispatchMode):
    """Bytes that operators make in tensors of at least ``least`` numbers."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.bytes, self.least = 0, least

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.numel() >= self.least and not made._is_view():
            given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)}
            self.bytes += made.nbytes if made.untyped_storage().data_ptr() not in given else 0
        return made


def cost(p: probe.Probe, name: str, rope: Callable[..., Pair], case: Case) -> None:
    """Forward and backward make what they return, and nothing besides, whatever the layout is."""
    q, k = case.q.clone().requires_grad_(), case.k.clone().requires_grad_()
    dq, dk, size = case.dq.clone(), case.dk.clone(), q.nbytes + k.nbytes
    with Made(min(q.numel(), k.numel())) as made:
        out = rope(q, k, case.cos, case.sin)
    p.guard(f"{name}: bytes of a forward", made.bytes, size, reference="q and k rotated", unit="bytes")
    with Made(min(q.numel(), k.numel())) as made:
        torch.autograd.grad(out, (q, k), (dq, dk))
    p.guard(f"{name}: bytes of a backward", made.bytes, size, reference="their gradients", unit="bytes")


def drawn(p: probe.Probe, device: str, partial: bool) -> None:
    """Any sizes, layouts, angles and uses."""

    def measure(
        batch: int, tokens: int, n_q: int, n_k: int, half: int, rotated: int, each: bool, use: str, seed: int
    ) -> float:
        wide = 2 * (1 + rotated % half) if partial else 0
        sizes = (batch, tokens, n_q, n_k, 2 * half)
        case = Case.make(sizes, device, torch.float32, seed, wide, each)
        rope = p.upstream("liger_kernel.ops").LigerRopeFunction.apply
        return worst(case.run(rope, BROKEN[use]), case.widened().run(eager, BROKEN[use]))

    numbers = {"batch": (1, 2), "tokens": (1, 5), "n_q": (1, 5), "n_k": (1, 3), "half": (1, 12), "rotated": (0, 11)}
    sizes = {name: st.integers(*bounds) for name, bounds in numbers.items()}
    chosen = {"each": st.booleans(), "use": st.sampled_from(sorted(BROKEN)), "seed": st.integers(0, 9999)}
    # fp32: sums of few terms that cancel
    p.drawn("drawn ropes", measure, 1e-3, space={**sizes, **chosen}, count=14, reference=FP64, bug_above=BUG)


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def measured(p: probe.Probe) -> None:
    """Memory and time at a model's size, as notes."""
    case = Case.make((2, 4096, 32, 8, 128), "cuda", torch.bfloat16, p.seed)
    rope = p.upstream("liger_kernel.ops").LigerRopeFunction.apply
    q, k = case.q.clone().requires_grad_(), case.k.clone().requires_grad_()

    def step() -> Any:
        return torch.autograd.grad(
            rope(q * 1.0, k * 1.0, case.cos, case.sin), (q, k), (case.dq, case.dk)
        )  # values do not matter

    step()
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = (torch.cuda.max_memory_allocated() - base) / 2**20
    p.note("peak of forward and backward", peak, unit="MiB", detail="2 x 4096, 32 and 8 heads of 128, bf16")
    p.note("forward and backward", p.milliseconds(step, 20, 3), unit="ms")


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter on the CPU; fp32 and bf16, compiled, on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    device = "cpu" if p.lane == "cpu" else "cuda"
    sizes = (2, 3, 4, 2, 16)
    case = Case.make(sizes, device, torch.float32, p.seed)
    found = dict(ropes(p))
    few = ("read after the call", "something added to the rotated", "alone")
    for name, rope in found.items():
        uses(p, name, rope, case, FP32, () if name == "autograd function" else few)
        inputs(p, name, rope, case)
        cost(p, name, rope, case)
    rope = found["autograd function"]
    uses(p, "angles for each row", rope, Case.make(sizes, device, torch.float32, p.seed, each=True), FP32, few)
    lying = Case.make(sizes, device, torch.float32, p.seed, plain=True)
    uses(p, "another memory", rope, lying, FP32, ("alone",))
    cost(p, "another memory", rope, lying)
    uses(p, "q of a model's layout alone", rope, replace(case, k=lying.k, dk=lying.dk), FP32, few)
    # [batch, 1, tokens, head] is one memory either way
    uses(p, "one head of k", rope, Case.make((1, 3, 4, 1, 16), device, torch.float32, p.seed), FP32, few)
    one_token(p, rope, case)
    partial = "rotary_dim" in inspect.signature(p.upstream("liger_kernel.ops").LigerRopeFunction.forward).parameters
    if partial:
        uses(p, "a part of each head", rope, Case.make(sizes, device, torch.float32, p.seed, rotated=8), FP32)
        inputs(p, "a part of each head", rope, Case.make(sizes, device, torch.float32, p.seed, rotated=8))
    drawn(p, device, partial)
    if p.lane == "cuda":
        for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, BF16)):
            large = Case.make((2, 512, 32, 8, 64), device, dtype, p.seed)
            uses(p, f"32 heads of 64, {dtype}".replace("torch.", ""), rope, large, limit)
        measured(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=29, package="liger_kernel", minimal=minimal, prepare=prepare)
