# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel==0.7.0"]
# ///
"""LigerFusedLinearCrossEntropyFunction with reduction="none" ignores the per-token grad_output in its backward.

The forward returns one loss per token, but the backward scales gradients that were already summed over tokens by
``grad_output[0]`` alone. Any non-uniform upstream gradient (a loss mask, per-token weights) silently gives wrong
gradients for input, weight and bias; where token 0 is masked every gradient is exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

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
# logits and their gradient are rounded to 2**-9, and so is the weight's and bias's running sum at each of up to 16
# chunks; 16 roundings that all go one way make 3e-2, those before the sum the rest
BF16 = 5e-2
ALL = (True, True, True)
Grads = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class Case:
    """One linear head: x [BT, H], w [V, H], b [V] or None, target [BT], and upstream weights go [BT]."""

    x: torch.Tensor
    w: torch.Tensor
    b: torch.Tensor | None
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

    def strided(self) -> Case:
        """The same values, each tensor with a gap after each row or number."""
        return Case(*(None if t is None else spread(t) for t in (self.x, self.w, self.b, self.target, self.go)))

    def leaves(self, needs: Sequence[bool] = ALL) -> list[torch.Tensor | None]:
        """Operands as leaves of a graph of their own; strides stay."""
        pairs = zip((self.x, self.w, self.b), needs, strict=True)
        return [None if t is None else t.detach().requires_grad_(n) for t, n in pairs]


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values at twice the stride of the first dimension."""
    return tensor.repeat_interleave(2, dim=0)[::2]


def reference(case: Case, **options: Any) -> tuple[torch.Tensor, Grads]:
    """Per-token losses [BT] and the gradients of their sum weighted by go: eager, fp64, 1024 tokens at a time."""
    leaves = [None if t is None else t.double().requires_grad_() for t in (case.x, case.w, case.b)]
    x, w, b = leaves
    assert x is not None and w is not None
    classes = options.get("ce_weight", torch.ones_like(case.w[:, 0])).double()  # [V]
    ignore, cap, losses = options.get("ignore_index", IGNORE), options.get("softcap"), []
    smoothing = options.get("label_smoothing", 0.0)
    for start in range(0, len(x), 1024):
        rows, t = x[start : start + 1024], case.target[start : start + 1024, None]
        valid, t = t != ignore, t.clamp(0, len(case.w) - 1)  # [rows, 1]
        z = F.linear(rows, w, b)  # [rows, V]
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
    return torch.cat(losses), [None if t is None else t.grad for t in leaves]


def error(got: torch.Tensor | None, want: torch.Tensor | None) -> float:
    """max|got - want| / max|want|, or max|got| where all of want is 0. A non-finite number gives NaN.

    A missing tensor counts as zeros, one of another shape as an error of 1. None is wanted where autograd drops it.
    """
    if want is None or (got is not None and got.shape != want.shape):
        return float(want is not None)
    got = torch.zeros_like(want) if got is None else got.detach().double()
    return ((got - want).abs().max() / (want.abs().max().item() or 1.0)).item()


def worst(got: Grads, want: Grads) -> float:
    """The largest error over the gradients."""
    return torch.tensor([error(g, r) for g, r in zip(got, want, strict=True)]).max().item()


def liger(
    function: Any, leaves: Sequence[torch.Tensor | None], target: torch.Tensor, extras: bool = False, **o: Any
) -> Any:
    """(loss, z_loss, token accuracy, ...) of the function under test, whose ``apply`` takes positions only."""
    (x, w, b), get = leaves, o.get
    head = (x, w, target, b, get("ce_weight"), get("ignore_index", IGNORE), get("lse_square_scale", 0.0))
    tail = (get("label_smoothing", 0.0), get("reduction", "none"), get("softcap"), extras, get("accum_dtype"))
    out = function.apply(*head, *tail, get("use_token_scaling", False), extras)
    if "reduction" not in o and out[0].shape != target.shape:
        raise RuntimeError(f"reduction='none' returned shape {tuple(out[0].shape)}: not this bug (up to 0.6.2)")
    return out


def backward(function: Any, loss: torch.Tensor, leaves: Sequence[torch.Tensor | None], go: torch.Tensor) -> Grads:
    """What the backward of ``function`` itself returns for x, w and b; autograd would cast it.

    None where it leaves a gradient out, as 0.8.0 does beside a frozen input: no error here, and for ``error`` zeros.
    """
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    torch.autograd.grad(loss, wanted, go if loss.ndim else None, retain_graph=True, allow_unused=True)
    x, w, _, b = function.returned[:4]
    return x, w, b


def observed(function: Any) -> Any:
    """The same function, which keeps what its backward returned last."""

    class Observed(function):  # type: ignore[misc]
        returned: tuple[torch.Tensor | None, ...] = ()

        @staticmethod
        def backward(ctx: Any, *go: torch.Tensor) -> Any:
            Observed.returned = function.backward(ctx, *go)
            return Observed.returned

    return Observed


def grads(function: Any, case: Case, needs: Sequence[bool] = ALL, **options: Any) -> Grads:
    """Gradients of sum(loss * go), or of the loss itself where it is reduced."""
    leaves = case.leaves(needs)
    return backward(function, liger(function, leaves, case.target, **options)[0], leaves, case.go)


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


def choices(classes: torch.Tensor) -> dict[str, dict[str, Any]]:
    """Every option that changes the gradient, by name."""
    return {
        "label smoothing": {"label_smoothing": 0.1},
        "z-loss": {"lse_square_scale": 1e-2},
        "class weights": {"ce_weight": classes},
        "softcap": {"softcap": 2.0},
        "token scaling": {"use_token_scaling": True},
        "fp32 accumulation": {"accum_dtype": torch.float32},
    }


def merged(chosen: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for options in chosen for key, value in options.items()}


def options(p: probe.Probe, function: Any, case: Case, limit: float) -> None:
    """Random weights, 1 token in 5 ignored, under every option that changes the gradient."""

    def check(name: str, got: Grads, want: Grads) -> None:
        p.error(f"ignored tokens, {name}", worst(got, want), limit, reference="eager fp64", bug_above=BUG)

    case.target[1::5] = IGNORE
    classes = torch.rand(len(case.w), device=case.go.device) + 0.2  # [V]
    grid = choices(classes)
    grid["all options"] = every = merged(grid.values())
    for name, chosen in grid.items():
        check(name, grads(function, case, **chosen), reference(case, **chosen)[1])
    spaced = {**every, "ce_weight": spread(classes)}
    odd: dict[str, tuple[Case, dict[str, Any]]] = {
        "no bias": (replace(case, b=None), every),
        "strided": (case.strided(), spaced),
    }
    for vocab in (1, 19):
        c = Case.make((5, 3, vocab), case.go.device.type, torch.float32)
        c.target[1::2], c.go[0] = IGNORE, 0.0
        odd[f"vocabulary of {vocab}"] = (c, {"lse_square_scale": 1.0, "use_token_scaling": True})
    for name, (c, o) in odd.items():
        made = p.guard_attempt(f"ignored tokens, {name}: backward", partial(grads, function, c, **o))
        if made is not None:
            check(name, made, reference(c, **o)[1])
    renamed = {"ignore_index": 3}  # a class
    other = replace(case, target=case.target.masked_fill(case.target == IGNORE, 3))
    check("another ignore_index", grads(function, other, **renamed), reference(other, **renamed)[1])
    want = reference(case)[1]
    source = "liger_kernel/ops/fused_linear_cross_entropy.py"
    leaves = case.leaves()  # a second backward through the same graph
    losses = liger(function, leaves, case.target)[0]
    backward(function, losses, leaves, case.go)
    check("second backward", backward(function, losses, leaves, case.go), want)
    smooth, pairs = {"label_smoothing": 0.5, "lse_square_scale": 0.1}, []  # two losses of one step, as with MTP's head
    for o in ({}, smooth):
        leaves = case.leaves()
        pairs.append((liger(function, leaves, case.target, **o)[0], leaves, reference(case, **o)[1]))
    for name, (losses, leaves, expected) in zip(("first", "second"), pairs, strict=True):
        check(f"{name} of two losses", backward(function, losses, leaves, case.go), expected)
    for name, needs in (("weight", (True, False, True)), ("bias", (True, True, False)), ("input", (False, True, True))):
        leaves = case.leaves(needs)
        call = partial(liger, function, leaves, case.target)
        # 0.7.0 trips over the bias gradient that it leaves out where the input is frozen
        crash = probe.Signature("AttributeError", "NoneType.*detach", source)
        out = p.attempt("frozen input: forward", call, crash) if name == "input" else call()
        if out is not None:
            wanted = [r if n else None for r, n in zip(want, needs, strict=True)]
            check(f"frozen {name}", backward(function, out[0], leaves, case.go), wanted)
    full = replace(case, x=case.x.float(), w=case.w.float(), b=None if case.b is None else case.b.float())
    with torch.autocast(case.go.device.type, torch.bfloat16):
        got = grads(function, full)
    # autocast computes in bf16 on either lane
    p.error("ignored tokens, autocast", worst(got, want), BF16, reference="eager fp64", bug_above=BUG)


def drawn(p: probe.Probe, function: Any, device: str) -> None:
    """Heads of any size, with any options."""

    def measure(
        tokens: int, hidden: int, vocab: int, bias: bool, strided: bool, ignore: int, chosen: list[str], seed: int
    ) -> float:
        torch.manual_seed(seed)
        case = Case.make((tokens, hidden, vocab), device, torch.float32)
        classes = torch.rand(vocab, device=device) + 0.2  # [V]
        # 0.7.0's softcap has a separate defect in padded columns, which are there unless V is a power of two
        names = [name for name in chosen if name != "softcap" or vocab & (vocab - 1) == 0]
        o = {**merged(choices(classes)[name] for name in names), "ignore_index": ignore}
        case.target[1::3] = ignore
        case = case if bias else replace(case, b=None)
        case = case.strided() if strided else case
        return worst(grads(function, case, **o), reference(case, **o)[1])

    numbers = {"tokens": st.integers(1, 7), "hidden": st.integers(1, 9), "vocab": st.integers(1, 40)}
    flags = {"bias": st.booleans(), "strided": st.booleans(), "ignore": st.sampled_from([IGNORE, 1])}
    chosen = st.lists(st.sampled_from(sorted(choices(torch.empty(0)))), unique=True)
    space = {**numbers, **flags, "chosen": chosen, "seed": st.integers(0, 9999)}
    # fp32: sums of at most 40 terms at 2**-23 make 5e-6; the rest is for sums that cancel
    p.drawn("drawn heads", measure, 1e-4, space=space, count=16, reference="eager fp64", bug_above=BUG)


def accumulation(p: probe.Probe, function: Any, device: str) -> None:
    """A gradient W, three of order 1 and -W, each in a chunk of its own: only a wider running sum keeps the three.

    W is 4 / eps of the operands, so half a unit in the last place of W times a gradient is that gradient or more: a sum
    in their own dtype loses the three. The wider one adds and takes away W exactly. What is left are roundings of half
    an eps, in logits, their gradient and two products, of numbers up to 4 times the result: 8 eps.
    """
    for dtype, wider in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float64),
    ):
        eps = torch.finfo(dtype).eps
        case = Case.make((5, 3, 16), device, dtype)  # chunks of one token: 16 / 3 rounded up are more than 5
        case.x.copy_(case.x.abs())
        case.x[4], case.target[:] = case.x[0], 2
        case.go[0], case.go[1:4], case.go[4] = 4 / eps, 1.0, -4 / eps
        got, want = grads(function, case, accum_dtype=wider), reference(case)[1]
        name = f"{dtype} summed in {wider}".replace("torch.", "")
        for part, g, r in zip(("weight", "bias"), got[1:], want[1:], strict=True):
            p.error(f"{name}: grad of {part}", error(g, r), 8 * eps, reference="eager fp64", bug_above=BUG)
        alike = [g is not None and g.dtype == dtype for g in got]
        p.guard(f"{name}: gradients not in {dtype}".replace("torch.", ""), 3 - sum(alike), 0, reference="the operands")


class Made(TorchDispatchMode):
    """Bytes of the largest tensor that an operator made, and how many matrix products ran.

    ``widened``: those of fp32 operands whose result has ``columns`` columns, as logits have.
    """

    def __init__(self, columns: int = 0) -> None:
        super().__init__()
        self.largest = self.products = self.widened = 0
        self.columns = columns

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        self.largest = max(self.largest, made.nbytes if isinstance(made, torch.Tensor) else 0)
        product = op.name().split(".")[0] in ("aten::mm", "aten::addmm", "aten::addmm_")
        self.products += product
        self.widened += product and made.shape[-1] == self.columns and args[-1].dtype == torch.float32
        return made


def chunks(p: probe.Probe, function: Any, device: str, limit: float) -> None:
    """The backward keeps to the chunks of the forward: it makes neither all logits nor a chunk a token."""
    case = Case.make((16, 4, 16), device, torch.float32)  # 4 chunks of 4 tokens
    # a chunk has the logits twice, in forward and backward, and one product for each gradient that is wanted
    frozen = {"frozen bias": (True, True, False), "frozen weight": (True, False, True)}
    for name, needs in {"chunks": ALL, **{f"chunks, {name}": needs for name, needs in frozen.items()}}.items():
        products, leaves = 2 + sum(needs), case.leaves(needs)
        with Made() as made:
            got = backward(function, liger(function, leaves, case.target)[0], leaves, case.go)
        want = [r if n else None for r, n in zip(reference(case)[1], needs, strict=True)]
        p.error(f"{name}: gradients", worst(got, want), limit, reference="eager fp64", bug_above=BUG)
        p.guard(f"{name}: matrix products", made.products, products * 4, reference=f"{products} a chunk")
        # operands, their gradients and a chunk of logits have 64 fp32 numbers each, all logits 256
        p.guard(f"{name}: largest tensor", made.largest, 128 * 4, reference="two chunks of logits", unit="bytes")
    half = Case.make((16, 4, 16), device, torch.bfloat16)
    leaves = half.leaves()
    with Made(columns=16) as made:
        backward(function, liger(function, leaves, half.target)[0], leaves, half.go)
    p.guard("chunks, bf16: logits of fp32 copies", made.widened, 0, reference="the logits that the loss is made of")


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
    one = torch.ones((), device=case.go.device)  # as .sum().backward() gives
    expanded, before = replace(ignored, go=one.expand(len(target))), scaled.go.clone()
    check("uniform 1, one number expanded", worst(grads(function, expanded, **o), reference(ignored, **o)[1]))
    grads(function, scaled, **o)
    differ = int((scaled.go != before).sum() + (one != 1))
    p.guard("upstream gradients changed in place", differ, 0, reference="they are the caller's")
    for i, name in enumerate(("input", "weight")):
        leaves = [None if t is None else t.detach().clone().requires_grad_() for t in case.leaves()]
        want = reference(uniform)[1]
        losses = liger(function, leaves, case.target)[0]
        with torch.no_grad():
            leaves[i].mul_(2)
        try:
            off = worst(backward(function, losses, leaves, uniform.go), want)
        except RuntimeError as refused:
            if "inplace operation" not in str(refused):
                raise
            off = 0.0  # autograd sees that what the backward needs is gone
        check(f"{name} changed before the backward", off)
    kept = (target != IGNORE).sum()
    for reduction, scale in (("mean", 1 / kept), ("sum", torch.ones_like(kept))):
        got = grads(function, ignored, reduction=reduction, **o)
        check(f"reduction {reduction}", worst(got, reference(replace(ignored, go=ignored.go * scale), **o)[1]))
        # a head that is all there is computed in the forward; what is absent or frozen has no gradient to keep
        bare, needs = replace(ignored, b=None, go=ignored.go * scale), (True, False, True)
        wanted = reference(bare, **o)[1]
        check(f"reduction {reduction}, no bias", worst(grads(function, bare, reduction=reduction, **o), wanted))
        frozen = grads(function, bare, needs, reduction=reduction, **o)
        check(f"reduction {reduction}, frozen weight", worst(frozen, [wanted[0], None, None]))
        leaves = ignored.leaves()
        loss = 2.5 * liger(function, leaves, ignored.target, reduction=reduction, **o)[0]
        wanted = reference(replace(ignored, go=2.5 * ignored.go * scale), **o)[1]
        check(f"reduction {reduction}, times 2.5", worst(backward(function, loss, leaves, ignored.go), wanted))
        p.digest(f"reduction {reduction}: bits of the gradients", *got)
    losses, z_losses, accuracy = liger(function, case.leaves(), case.target, extras=True, **o)[:3]
    want = reference(case, **o)[0]
    check("per-token losses", error(losses, want))
    check("per-token z-losses", error(z_losses, want - reference(case, label_smoothing=0.1)[0]))
    hits = (F.linear(*(t.float() for t in case.leaves() if t is not None)).argmax(-1) == case.target).double()
    p.guard("token accuracy", (accuracy - hits).abs().mean().item(), 0.02, reference="argmax in fp32")


def cost(p: probe.Probe, name: str, case: Case, losses: Callable[[list[torch.Tensor | None]], torch.Tensor]) -> None:
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
        got = torch.autograd.grad(loss, [t for t in leaves if t is not None])
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
    function = observed(function)
    torch.manual_seed(p.seed)
    if p.lane == "cpu":
        # fp32: 2**-23 per operation, sums of at most 64 terms; measured below 2e-6. V is a power of two, for the
        # softcap of 0.7.0 has a separate defect in padded columns. 12 tokens make a full and a ragged chunk.
        small = big = Case.make((12, 32, 64), "cpu", torch.float32)
        limit = 1e-5
    else:
        small = Case.make((512, 256, 1024), "cuda", torch.bfloat16)
        big = Case.make((4096, 4096, 65536), "cuda", torch.bfloat16)
        limit = BF16
    guards(p, function, small, limit)
    claim(p, function, big, limit)
    if p.lane == "cuda":
        cost(p, "liger", big, lambda leaves: liger(function, leaves, big.target)[0])
        loss = partial(F.cross_entropy, target=big.target, reduction="none")
        cost(p, "eager, bf16 logits", big, lambda leaves: loss(F.linear(*leaves).float()))
        ones = replace(big, go=torch.full_like(big.go, 1 / len(big.go)))
        mean = worst(grads(function, big, reduction="mean"), reference(ones)[1])
        p.guard("reduction mean, large", mean, limit, reference="eager fp64")
    device = small.go.device.type
    chunks(p, function, device, 1e-5)
    accumulation(p, function, device)
    drawn(p, function, device)
    options(p, function, small, limit)


if __name__ == "__main__":
    probe.main(reproduce, pack=9, package="liger_kernel", minimal=minimal, prepare=prepare)
