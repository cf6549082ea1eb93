# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "triton==3.6.0", "numpy<2.4", "packaging", "liger-kernel==0.7.0"]
# ///
"""LigerFusedLinearCrossEntropyFunction with reduction="none" ignores the per-token grad_output in its backward.

The forward returns one loss per token, but the backward scales gradients that were already summed over tokens by
``grad_output[0]`` alone. Any non-uniform upstream gradient (a loss mask, per-token weights) silently gives wrong
gradients for input, weight and bias; where token 0 is masked every gradient is exactly 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from reproducers import probe


def minimal() -> None:
    """The gradient of a masked loss, against torch's."""
    import torch
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.randn(8, 16, device=device, requires_grad=True)
    weight, target = torch.randn(32, 16, device=device), torch.arange(8, device=device)
    mask = torch.tensor([0.0, 1, 1, 1, 1, 1, 1, 1], device=device)  # as of a prompt
    loss = LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, x, target)
    (got,) = torch.autograd.grad((loss * mask).sum(), x)
    loss = torch.nn.functional.cross_entropy(x @ weight.T, target, reduction="none")
    (want,) = torch.autograd.grad((loss * mask).sum(), x)
    print(f"norm of the gradient: {got.norm():.4f}, torch's: {want.norm():.4f}")
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


IGNORE = -100
BUG = 0.2  # a gradient with token 0's weight instead of each token's own is off by O(1) of its maximum
ALL = (True, True, True)
Grads = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class Case:
    """One linear head: x [BT, H], w [V, H], b [V], target [BT], and upstream weights go [BT]."""

    x: torch.Tensor
    w: torch.Tensor
    b: torch.Tensor
    target: torch.Tensor
    go: torch.Tensor

    @classmethod
    def make(cls, shape: tuple[int, int, int], device: str, dtype: torch.dtype) -> Case:
        """Random operands whose logits have about unit variance; weights uniform in [0, 2)."""
        tokens, hidden, vocab = shape
        with torch.device(device):
            x, w, b = torch.randn(tokens, hidden), torch.randn(vocab, hidden) * hidden**-0.5, torch.randn(vocab) * 0.2
            target, go = torch.randint(0, vocab, (tokens,)), torch.rand(tokens) * 2
        return cls(x.to(dtype), w.to(dtype), b.to(dtype), target, go)

    def leaves(self, needs: Sequence[bool] = ALL) -> list[torch.Tensor]:
        return [t.clone().requires_grad_(n) for t, n in zip((self.x, self.w, self.b), needs, strict=True)]


def reference(case: Case, **options: Any) -> tuple[torch.Tensor, Grads]:
    """Per-token losses [BT] and the gradients of their sum weighted by go: eager, fp64, 1024 tokens at a time."""
    x, w, b = (t.double().requires_grad_() for t in (case.x, case.w, case.b))
    classes = options.get("ce_weight", torch.ones_like(case.b)).double()  # [V]
    smoothing, cap, losses = options.get("label_smoothing", 0.0), options.get("softcap"), []
    for start in range(0, len(x), 1024):
        rows, t = x[start : start + 1024], case.target[start : start + 1024, None]
        valid, t = t != IGNORE, t.clamp(min=0)  # [rows, 1]
        z = rows @ w.t() + b  # [rows, V]
        z = cap * torch.tanh(z / cap) if cap else z
        lse = z.logsumexp(-1, keepdim=True)  # [rows, 1]
        loss = (1 - smoothing) * classes[t] * (lse - z.gather(1, t))
        if smoothing:
            loss = loss + smoothing * ((lse - z) * classes).mean(-1, keepdim=True)
        loss = loss + options.get("lse_square_scale", 0.0) * lse**2
        if options.get("use_token_scaling"):
            loss = loss * (z.gather(1, t) - lse).exp().detach()
        loss = torch.where(valid, loss, 0.0)[:, 0]
        (loss * case.go[start : start + 1024]).sum().backward()
        losses.append(loss.detach())
    return torch.cat(losses), (x.grad, w.grad, b.grad)


def error(got: torch.Tensor | None, want: torch.Tensor | None) -> float:
    """max|got - want| / max|want|; a missing tensor counts as zeros, a non-finite one gives NaN."""
    assert want is not None
    got = torch.zeros_like(want) if got is None else got.detach().double()
    return ((got - want).abs().max() / want.abs().max()).item()


def worst(got: Grads, want: Grads) -> float:
    """The largest error over the gradients that are wanted."""
    return torch.tensor([error(g, r) for g, r in zip(got, want, strict=True) if r is not None]).max().item()


def liger(function: Any, leaves: Sequence[torch.Tensor], target: torch.Tensor, extras: bool = False, **o: Any) -> Any:
    """(loss, z_loss, token accuracy, ...) of the function under test, whose ``apply`` takes positions only."""
    (x, w, b), get = leaves, o.get
    head = (x, w, target, b, get("ce_weight"), IGNORE, get("lse_square_scale", 0.0), get("label_smoothing", 0.0))
    tail = (
        get("reduction", "none"),
        get("softcap"),
        extras,
        get("accum_dtype"),
        get("use_token_scaling", False),
        extras,
    )
    out = function.apply(*head, *tail)
    if "reduction" not in o and out[0].shape != target.shape:
        raise RuntimeError(f"reduction='none' returned shape {tuple(out[0].shape)}: not this bug (up to 0.6.2)")
    return out


def grads(function: Any, case: Case, **options: Any) -> Grads:
    """Gradients of sum(loss * go), or of the loss itself where it is reduced."""
    leaves = case.leaves()
    loss = liger(function, leaves, case.target, **options)[0]
    return torch.autograd.grad((loss * case.go).sum() if loss.ndim else loss, leaves)


def claim(p: probe.Probe, function: Any, case: Case, limit: float) -> None:
    """Each gradient by itself under three upstream gradients, two of them loss masks as in fine-tuning."""
    mask, first = (torch.rand_like(case.go) >= 0.3).float(), torch.arange(len(case.go), device=case.go.device) == 0
    plans = {
        "token 0 masked": (mask.masked_fill(first, 0.0), 0.99),  # all gradients are 0: the error is 1
        "masked, token 0 kept": (mask.masked_fill(first, 1.0), BUG),
        "random weights": (case.go, BUG),
    }
    for plan, (go, above) in plans.items():
        weighted = replace(case, go=go)
        got, want = grads(function, weighted), reference(weighted)[1]
        for name, g, r in zip(("input", "weight", "bias"), got, want, strict=True):
            p.error(f"{plan}: grad of {name}", error(g, r), limit, reference="eager fp64", bug_above=above)


def options(p: probe.Probe, function: Any, case: Case, limit: float) -> None:
    """Random weights, 1 token in 5 ignored, under every option that changes the gradient."""

    def check(name: str, got: Grads, want: Grads) -> None:
        p.error(f"ignored tokens, {name}", worst(got, want), limit, reference="eager fp64", bug_above=BUG)

    case.target[1::5] = IGNORE
    classes = torch.rand(len(case.w), device=case.go.device) + 0.2  # [V]
    grid: dict[str, dict[str, Any]] = {
        "label smoothing": {"label_smoothing": 0.1},
        "z-loss": {"lse_square_scale": 1e-2},
        "class weights": {"ce_weight": classes},
        "softcap": {"softcap": 2.0},
        "token scaling": {"use_token_scaling": True},
        "fp32 accumulation": {"accum_dtype": torch.float32},
    }
    grid["all options"] = {key: value for chosen in grid.values() for key, value in chosen.items()}
    for name, chosen in grid.items():
        check(name, grads(function, case, **chosen), reference(case, **chosen)[1])
    want = reference(case)[1]
    source = "liger_kernel/ops/fused_linear_cross_entropy.py"
    leaves = case.leaves()  # a second backward through the same graph
    total = (liger(function, leaves, case.target)[0] * case.go).sum()
    torch.autograd.grad(total, leaves, retain_graph=True)
    check("second backward", torch.autograd.grad(total, leaves), want)
    for name, needs in (("weight", (True, False, True)), ("bias", (True, True, False)), ("input", (False, True, True))):
        leaves = case.leaves(needs)
        call = partial(liger, function, leaves, case.target)
        # 0.7.0 trips over the bias gradient that it leaves out where the input is frozen
        crash = probe.Signature("AttributeError", "NoneType.*detach", source)
        out = p.attempt("frozen input: forward", call, crash) if name == "input" else call()
        if out is not None:
            (out[0] * case.go).sum().backward()
            wanted = [r if n else None for r, n in zip(want, needs, strict=True)]
            check(f"frozen {name}", [t.grad for t in leaves], wanted)
    if p.lane == "cpu":
        p.skip("ignored tokens, autocast", "the Triton interpreter does not compute in bf16")
        return
    full = replace(case, x=case.x.float(), w=case.w.float(), b=case.b.float())
    with torch.autocast("cuda", torch.bfloat16):
        got = grads(function, full)
    check("autocast", got, want)


def guards(p: probe.Probe, function: Any, case: Case, limit: float) -> None:
    """Uniform upstream gradients, the other reductions and the forward's outputs."""

    def check(name: str, measured: float) -> None:
        p.guard(name, measured, limit, reference="eager fp64")

    o: dict[str, Any] = {"lse_square_scale": 1e-2, "label_smoothing": 0.1}
    uniform = replace(case, go=torch.ones_like(case.go))
    target = case.target.clone()
    target[::5] = IGNORE
    ignored = replace(uniform, target=target)
    scaled = replace(ignored, go=ignored.go * 2.5)
    for name, c in (("1", uniform), ("1, ignored tokens", ignored), ("2.5, ignored tokens", scaled)):
        check(f"uniform {name}", worst(grads(function, c, **o), reference(c, **o)[1]))
    kept = (target != IGNORE).sum()
    for reduction, scale in (("mean", 1 / kept), ("sum", torch.ones_like(kept))):
        got = grads(function, ignored, reduction=reduction, **o)
        check(f"reduction {reduction}", worst(got, reference(replace(ignored, go=ignored.go * scale), **o)[1]))
        p.note(f"reduction {reduction}: SHA-256 of the gradients", digest(got), detail="to compare arms")
    losses, z_losses, accuracy = liger(function, case.leaves(), case.target, extras=True, **o)[:3]
    want = reference(case, **o)[0]
    check("per-token losses", error(losses, want))
    check("per-token z-losses", error(z_losses, want - reference(case, label_smoothing=0.1)[0]))
    hits = ((case.x.float() @ case.w.float().t() + case.b.float()).argmax(-1) == case.target).double()
    p.guard("token accuracy", (accuracy - hits).abs().mean().item(), 0.02, reference="argmax in fp32")


def digest(tensors: Grads) -> str:
    """Equal for bitwise equal tensors, so that arms can be compared."""
    parts = [t.detach().cpu().view(torch.uint8).numpy().tobytes() for t in tensors if t is not None]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def cost(p: probe.Probe, name: str, case: Case, losses: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
    """Peak memory of forward and backward over what the operands hold, and the median time of 7 repeats."""
    times = []
    for _ in range(8):  # the first compiles
        leaves, (start, end) = case.leaves(), (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start.record()
        loss = (losses(leaves) * case.go).sum()
        forward, held = torch.cuda.max_memory_allocated() - base, torch.cuda.memory_allocated() - base
        torch.cuda.reset_peak_memory_stats()
        got = torch.autograd.grad(loss, leaves)
        end.record()
        torch.cuda.synchronize()
        backward = torch.cuda.max_memory_allocated() - base
        times.append(start.elapsed_time(end))
        del loss, got
    for part, size in (("forward peak", forward), ("held for backward", held), ("backward peak", backward)):
        p.note(f"{name}: {part}", size / 2**30, unit="GiB", detail="above the operands")
    p.note(f"{name}: forward and backward", median(times[1:]), unit="ms", detail="median of 7")


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter on the CPU; bf16, compiled, at a real head's size on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    function = p.upstream("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction
    torch.manual_seed(p.seed)
    if p.lane == "cpu":
        # fp32: 2**-23 per operation, sums of at most 64 terms; measured below 2e-6. V is a power of two, for the
        # softcap of 0.7.0 has a separate defect in padded columns. 24 tokens make a full and a ragged chunk.
        small = big = Case.make((24, 32, 64), "cpu", torch.float32)
        limit = 1e-5
    else:
        # bf16: logits and their gradient are rounded to 2**-9, and so is the weight's and bias's running sum at each of
        # up to 16 chunks; 16 roundings that all go one way make 3e-2, those before the sum the rest.
        small = Case.make((512, 256, 1024), "cuda", torch.bfloat16)
        big = Case.make((4096, 4096, 65536), "cuda", torch.bfloat16)
        limit = 5e-2
    guards(p, function, small, limit)
    claim(p, function, big, limit)
    if p.lane == "cuda":
        cost(p, "liger", big, lambda leaves: liger(function, leaves, big.target)[0])
        loss = partial(F.cross_entropy, target=big.target, reduction="none")
        cost(p, "eager, bf16 logits", big, lambda leaves: loss(F.linear(*leaves).float()))
        ones = replace(big, go=torch.full_like(big.go, 1 / len(big.go)))
        mean = worst(grads(function, big, reduction="mean"), reference(ones)[1])
        p.guard("reduction mean, large", mean, limit, reference="eager fp64")
    options(p, function, small, limit)


if __name__ == "__main__":
    probe.main(reproduce, pack=9, package="liger_kernel", minimal=minimal, prepare=prepare)
