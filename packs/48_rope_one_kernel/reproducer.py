# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis"]
# ///
"""Unfused RoPE takes some thirty operators forward and backward, and writes its input's size eight to sixteen times.

A rotation reads each number once and writes it once. ``_apply_rotary_pos_emb_bshd`` slices, joins, negates, multiplies
and adds, an operator each, and autograd does so again backward. MLA without YaRN and every DSA layer must take this
way: they refuse RoPE fusion. CPU lane: operators, and kernels by Triton's interpreter. CUDA lane: kernels, and times.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from reproducers import probe


def minimal():
    """Autograd's graph of one rotation holds its operators; on a GPU each is a kernel or more, and more backward."""
    import torch
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd

    # [tokens, batch, heads, channels]
    query = torch.randn(64, 1, 4, 32, device="cuda", requires_grad=True)
    freqs = torch.randn(64, 1, 1, 32, device="cuda")
    nodes = [_apply_rotary_pos_emb_bshd(query, freqs, mla_rotary_interleaved=True).grad_fn]
    for node in nodes:
        nodes += [other for other, _ in node.next_functions if other not in (None, *nodes)]
    print("operators of one rotation:", *(node.name() for node in nodes[:-1]))
    assert len(nodes) == 2  # one, and the query itself


ROPE = "megatron.core.models.common.embeddings.rope_utils"
EXACT = "fp64 rotation"
STEPS = "one operator after another, each rounded to the dtype"
# fp32 rounds products and the sum. The others round cosine, sine, both products and the sum, each to half of the last
# of 11 or of 8 bits; the two terms of a pair have at most sqrt(2) of its norm: (2 sqrt(2) + 1) / 2 last bits are
# all that can be lost. Triton's interpreter cuts bf16 off where it should round, which loses twice as much
LIMITS = {torch.float32: 1e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}
LAYOUTS = ("whole", "part", "batch first", "heads first", "every other", "one head for all")
ANGLES = ("whole", "by columns", "every other row", "one row for all")
GRADS = ("whole", "batch first", "one number for all")
SHAPES = {  # tokens, batch, heads, channels; some beyond what one program should hold
    "queries": (2, 1, 28, 64),
    "a key for all heads": (1, 2, 1, 64),
    "300 heads": (1, 1, 300, 6),
    "1,022 channels": (1, 1, 9, 1022),
    "a pair": (2, 1, 1, 2),
}


@cache
def rope(p: probe.Probe) -> Any:
    return p.upstream(ROPE)


@cache
def config(p: probe.Probe, pairs: bool = False) -> Any:
    configs = p.upstream("megatron.core.transformer.transformer_config")
    return configs.TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, rotary_interleaved=pairs)


def drawn(p: probe.Probe, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(p.seed + seed)
    return torch.randn(shape, generator=generator).to(torch.cuda.current_device())


def tokens(p: probe.Probe, dtype: torch.dtype, shape: tuple[int, ...], layout: str, seed: int) -> Tensor:
    """Numbers [s, b, h, d] that lie in memory as ``layout`` says."""
    s, b, h, d = shape

    def make(*sizes: int) -> Tensor:
        return drawn(p, *sizes, seed=seed).to(dtype)

    made = {
        "whole": lambda: make(s, b, h, d),
        "part": lambda: make(s, b, h, d + 8)[..., 8:],
        "batch first": lambda: make(b, s, h, d).transpose(0, 1),
        "heads first": lambda: make(h, d, b, s).permute(3, 2, 0, 1),
        "every other": lambda: make(s, b, h, 2 * d)[..., ::2],
        "one head for all": lambda: make(s, b, 1, d).expand(s, b, h, d),
        "one number for all": lambda: make(1).expand(s, b, h, d),
    }
    return made[layout]()


def angles(p: probe.Probe, rows: int, width: int, layout: str, seed: int) -> Tensor:
    """Any angles [s, 1, 1, d]: those of a pair's two channels differ."""
    made = {
        "whole": lambda: 8 * drawn(p, rows, width, seed=seed),
        "by columns": lambda: (8 * drawn(p, width, rows, seed=seed)).t(),
        "every other row": lambda: (8 * drawn(p, 2 * rows, width, seed=seed))[::2],
        "one row for all": lambda: (8 * drawn(p, 1, width, seed=seed)).expand(rows, width),
    }
    return made[layout]()[:, None, None]


def stepwise(t: Tensor, freqs: Tensor, mla: bool = False, scale: float = 1.0, pairs: bool = False) -> Tensor:
    """The rotation as its formula says, an operator at a time."""
    x, rest = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    x = torch.cat((x[..., ::2], x[..., 1::2]), -1) if mla else x
    first, second = (x[..., ::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
    turned = torch.stack((-second, first), -1).flatten(-2) if pairs else torch.cat((-second, first), -1)
    cos, sin = ((scale * part).to(x.dtype) for part in (freqs.cos(), freqs.sin()))
    return torch.cat((x * cos + turned * sin, rest), -1)


def both(turn: Callable[..., Tensor], t: Tensor, freqs: Tensor, grad: Tensor, *more: Any) -> list[Tensor]:
    """The result and the gradient of t."""
    leaf = t.detach().requires_grad_()
    out = turn(leaf, freqs, *more)
    return [out.detach(), *torch.autograd.grad(out, leaf, grad)]


def exact(t: Tensor, freqs: Tensor, grad: Tensor, *more: Any) -> list[Tensor]:
    return both(stepwise, t.double(), freqs.double(), grad.double(), *more)


def off(found: list[Tensor], true: list[Tensor], dtype: torch.dtype) -> float:
    """The largest error, infinite where dtype or shape is another's."""
    worst = 0.0
    for one, other in zip(found, true, strict=True):
        alike = one.dtype == dtype and one.shape == other.shape
        worst = max(worst, ((one.double() - other).norm() / other.norm()).item() if alike else math.inf)
    return worst


class Case:
    """Inputs of upstream's function, compared with fp64 and bit by bit; the last ``rest`` channels do not turn."""

    def __init__(
        self,
        p: probe.Probe,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        mla: bool = False,
        scale: float = 1.0,
        layout: str = "whole",
        table: str = "whole",
        upward: str = "whole",
        rest: int = 0,
    ) -> None:
        self.p, self.dtype, self.more = p, dtype, (mla, scale)
        self.t, self.grad = tokens(p, dtype, shape, layout, 1), tokens(p, dtype, shape, upward, 2)
        self.freqs = angles(p, shape[0], shape[3] - rest, table, 3)  # of ``rest`` channels none turns

    def turn(self, t: Tensor, freqs: Tensor, mla: bool, scale: float) -> Tensor:
        return rope(self.p).apply_rotary_pos_emb(  # type: ignore[no-any-return]
            t, freqs, config(self.p), mscale=scale, cp_group=ALONE, mla_rotary_interleaved=mla
        )

    def step(self) -> list[Tensor]:
        return both(self.turn, self.t, self.freqs, self.grad, *self.more)

    def compared(self, evaluated: bool = False) -> tuple[float, int]:
        """The error, infinite where an input changed; numbers unlike STEPS. ``evaluated``: without gradients too."""
        given = (self.t, self.freqs, self.grad)
        before = [one.clone() for one in given]
        found = self.step()
        with torch.inference_mode():
            results = [self.turn(self.t, self.freqs, *self.more).clone() for _ in range(evaluated)]
        with torch.no_grad():
            results += [self.turn(self.t, self.freqs, *self.more) for _ in range(evaluated)]
        alike = all(torch.equal(one, found[0]) for one in results)
        kept = all(map(torch.equal, given, before)) and found[0].data_ptr() != self.t.data_ptr()
        steps = both(stepwise, self.t, self.freqs, self.grad, *self.more)
        unlike = sum(int((one != other).sum()) for one, other in zip(found, steps, strict=True))
        error = off(found, exact(self.t, self.freqs, self.grad, *self.more), self.dtype)
        return error if alike and kept else math.inf, unlike

    def again(self) -> tuple[float, int]:
        """The same of other numbers in the same tensors, whose versions stay as they were."""
        for seed, one in enumerate((self.t, self.freqs, self.grad)):
            if 0 not in one.stride():
                one.data.copy_(drawn(self.p, *one.shape, seed=seed + 4).to(one.dtype))
        return self.compared()


ALONE = SimpleNamespace(size=lambda: 1, rank=lambda: 0)  # all that is asked of a context parallel group


def check_values(p: probe.Probe, dtype: torch.dtype) -> None:
    """Right, and as ever bit by bit, for shapes, strides and options that nobody can foresee."""
    from hypothesis import strategies as st

    name, unlike, rough = str(dtype).removeprefix("torch."), 0, p.lane == "cpu" and dtype == torch.bfloat16
    count = {"cuda": 40, "cpu": 4 if rough else 10}[p.lane]

    def measure(shape: tuple[int, ...], **options: Any) -> float:
        nonlocal unlike
        case = Case(p, dtype, (*shape[:3], 2 * shape[3] + options["rest"]), **options)
        found = case.compared(evaluated=True), case.again()
        unlike += sum(count for _, count in found)
        return max(error for error, _ in found)

    space = {
        "shape": st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), st.integers(1, 12)),
        "mla": st.booleans(),
        "scale": st.sampled_from([1.0, 0.5, 1.25]),
        "layout": st.sampled_from(LAYOUTS),
        "table": st.sampled_from(ANGLES),
        "upward": st.sampled_from(GRADS),
        "rest": st.one_of(st.just(0), st.integers(1, 9)),
    }
    p.drawn(f"{name}: output and gradient, drawn", measure, LIMITS[dtype], space=space, count=count, reference=EXACT)
    for what, shape in SHAPES.items():
        found = [Case(p, dtype, shape, mla, layout="part", table="by columns").compared() for mla in (False, True)]
        unlike += sum(count for _, count in found)
        p.guard(
            f"{name}: output and gradient, {what}", max(error for error, _ in found), LIMITS[dtype], reference=EXACT
        )
    if rough:
        p.skip(f"{name}: numbers unlike those of single operators", "Triton's interpreter does not round bf16")
    else:
        p.guard(f"{name}: numbers unlike those of single operators", unlike, 0, reference=STEPS)


def check_neighbours(p: probe.Probe) -> None:
    """What the formula also allows is the same as ever: other shapes, dtypes and tensors, angles that are learned."""
    function = rope(p)._apply_rotary_pos_emb_bshd

    def turn(t: Tensor, freqs: Tensor, mla: bool = False, scale: float = 1.0, pairs: bool = False) -> Tensor:
        return function(t, freqs, pairs, mla, scale)  # type: ignore[no-any-return]

    rows, batch, heads, width = 3, 2, 2, 12
    whole, shared = (rows, batch, heads, width), (rows, 1, 1, width)
    cases: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
        "some channels, pairs of neighbours": ((rows, batch, heads, 16), shared, {"pairs": True}),
        "pairs of neighbours": (whole, shared, {"pairs": True}),
        "angles of each sequence": (whole, (rows, batch, 1, width), {}),
        "angles of each head": (whole, (rows, 1, heads, width), {}),
        "angles of all tokens": (whole, (1, 1, 1, width), {"mla": True}),
        "no heads": ((rows, batch, width), (rows, 1, width), {"mla": True}),
        "groups of heads": ((rows, batch, 2, heads, width), (rows, 1, 1, 1, width), {}),
        "three channels": ((rows, batch, heads, 3), (rows, 1, 1, 3), {}),
        "three channels of four": ((rows, batch, heads, 4), (rows, 1, 1, 3), {}),
        "no tokens": ((0, batch, heads, width), (0, 1, 1, width), {"mla": True}),
        "no sequences": ((rows, 0, heads, width), shared, {}),
        "all channels": (whole, shared, {"mla": True}),
    }
    wrong = list[str]()
    for seed, (what, (shape, table, options)) in enumerate(cases.items()):
        for dtype in (torch.float32, torch.float16, torch.float64):
            t, grad = (drawn(p, *shape, seed=seed + more).to(dtype) for more in (20, 40))
            given = t, 8 * drawn(p, *table, seed=seed), grad
            calls = (partial(call, **options) for call in (turn, stepwise))
            found, true = (both(call, *given) for call in calls)
            alike = all(one.dtype == other.dtype for one, other in zip(found, true, strict=True))
            wrong += [f"{what}, {dtype}"] * (not alike or not all(map(torch.equal, found, true)))
    p.guard("other shapes and dtypes: results that changed", len(wrong), 0, reference=STEPS)
    p.note("the first of these", wrong[0] if wrong else "none")

    freqs, t = drawn(p, *shared, seed=1), drawn(p, *whole)
    for wanted in ((True, True), (False, True)):
        results = []
        for call in (turn, stepwise):
            leaves = [one.detach().requires_grad_(want) for one, want in zip((t, freqs), wanted, strict=True)]
            out = call(*leaves)
            wants = [one for one in leaves if one.requires_grad]
            grads = torch.autograd.grad(out, wants, t, allow_unused=True)
            results.append([out.detach(), *(torch.zeros(()) if one is None else one for one in grads)])
        error = off(results[0], [one.double() for one in results[1]], torch.float32)
        p.guard(f"gradients, those of {sum(wanted)} inputs wanted", error, 1e-6, reference=STEPS)

    class Marked(Tensor):
        pass

    marked = function(t.as_subclass(Marked), freqs)
    kind = type(marked) is not Marked or not torch.equal(marked.as_subclass(Tensor), stepwise(t, freqs))
    p.guard("a tensor of another class becomes another", kind, 0, reference="its class")
    named = inspect.signature(function).parameters
    for name, changed in {
        "inverse": lambda: stepwise(t, -freqs, True),
        "mla_output_remove_interleaving": lambda: stepwise(t, freqs, True).unflatten(-1, (2, -1)).mT.flatten(-2),
    }.items():
        if name in named:
            found = function(t, freqs, mla_rotary_interleaved=True, **{name: True})
            p.guard(f"{name}: output", off([found], [changed().double()], t.dtype), 1e-6, reference=STEPS)
    packed(p)


def packed(p: probe.Probe) -> None:
    """Sequences one after the other, by angles of each position in the batch, and by those of the longest."""
    cu, t = torch.tensor([0, 1, 4, 5], dtype=torch.int32).to(torch.cuda.current_device()), drawn(p, 5, 2, 8)
    apply = rope(p).apply_rotary_pos_emb
    longest = {"max_seqlen": 3} if "max_seqlen" in inspect.signature(apply).parameters else {}  # where it is wanted
    for rows, at in ((5, [0, 1, 2, 3, 4]), (3, [0, 0, 1, 2, 0])):
        freqs, places = 8 * drawn(p, rows, 1, 1, 8, seed=rows), torch.tensor(at)
        for mla in (False, True):
            options: dict[str, Any] = {"cu_seqlens": cu, "cp_group": ALONE, "mla_rotary_interleaved": mla, **longest}
            true = exact(t[:, None], freqs[places.to(freqs.device)], t[:, None], mla)
            found = both(partial(apply, **options), t, freqs, t, config(p))
            error = off(found, [one[:, 0] for one in true], t.dtype)
            p.guard(f"packed sequences, {rows} angles, MLA {mla}: output and gradient", error, 1e-6, reference=EXACT)


def check_contexts(p: probe.Probe) -> None:
    """Autocast, gradients of gradients, calls that overlap, and what is kept for the backward pass."""
    for mla in (False, True):
        name, case = f"MLA {mla}", Case(p, torch.float32, (2, 2, 3, 12), mla, 1.25)
        other = Case(p, torch.float32, (2, 2, 3, 12), not mla, 0.5)
        other.freqs, other.t = -3 * other.freqs, case.t
        leaf, up = case.t.detach().requires_grad_(), case.grad.detach().requires_grad_()
        outs = [one.turn(leaf, one.freqs, *one.more) for one in (case, other)]
        true = [exact(case.t, one.freqs, case.grad, *one.more) for one in (case, other)]
        found = [torch.autograd.grad(out, leaf, case.grad, retain_graph=True)[0] for out in (*outs, *outs)]
        errors = [off([one], [true[at % 2][1]], torch.float32) for at, one in enumerate(found)]
        p.guard(f"{name}: gradients of two calls, twice", max(errors), 1e-6, reference=EXACT)
        (turned,) = torch.autograd.grad(outs[0], leaf, up, create_graph=True)
        error = math.inf
        if turned.requires_grad:  # the transpose of the transpose
            error = off([*torch.autograd.grad(turned, up, case.t)], true[0][:1], torch.float32)
        p.guard(f"{name}: gradient of the gradient", error, 1e-6, reference=EXACT)
        with torch.autocast(case.t.device.type, torch.bfloat16):
            cast = case.step()
        unlike = not all(map(torch.equal, cast, case.step()))
        p.guard(f"{name}: autocast changes the result", unlike, 0, reference="the same without")
        moved, kept = leaf * 2, list[int]()

        def keep(one: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(one.numel())
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            out = case.turn(moved, case.freqs, *case.more)
        saved = sum(kept) / case.freqs.numel()
        p.guard(f"{name}: tables kept for the backward pass", saved, 2, reference="cosines and sines")
        seen = weakref.ref(moved)
        del moved
        gc.collect()
        p.guard(f"{name}: the input is kept for the backward pass", seen() is not None, 0, reference="it is not")
        del out
    given = Case(p, torch.float32, (3, 1, 2, 8), True)
    with torch.inference_mode():
        table = given.freqs.clone()
    found = both(given.turn, given.t, table, given.grad, *given.more)
    error = off(found, exact(given.t, given.freqs, given.grad, *given.more), torch.float32)
    p.guard("angles made in inference mode: output and gradient", error, 1e-6, reference=EXACT)


class Launched:
    """Counts kernels that Triton's interpreter runs; how it moves their arguments is not shown to what counts."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        from torch.utils._python_dispatch import _disable_current_modes
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def launch(executor: Any, *args: Any, **named: Any) -> Any:
            self.count += 1
            with _disable_current_modes():
                return run(executor, *args, **named)

        with mock.patch.object(GridExecutor, "__call__", launch):
            yield


def work(p: probe.Probe, call: Callable[[], Any]) -> tuple[int, int]:
    """Operators and kernels of a call, and elements that its operators write: on a GPU kernels alone, and nothing."""
    call()
    if p.lane == "cuda":
        p.launches(call)
        return p.launches(call)[0], 0
    launched = Launched()
    with launched.counting():
        operators = p.operators(call)
    return operators.count + launched.count, operators.written


def check_work(p: probe.Probe) -> None:
    """Of MLA's queries and shared keys, and of the indexer's queries, whose pairs are halves."""
    size, errors = 4096 if p.lane == "cuda" else 2, list[float]()
    counted = "kernels" if p.lane == "cuda" else "operators"
    for what, heads, mla, dtype, rest in (
        ("MLA's queries", 28, True, torch.float16, 0),
        ("MLA's shared key", 1, True, torch.float32, 0),
        ("the indexer's queries", 16, False, torch.float16, 0),
        ("the indexer's queries, half of which turn", 16, False, torch.bfloat16, 64),
    ):
        case = Case(p, dtype, (size, 1, heads, 64 + rest), mla, layout="part", rest=rest)
        errors.append(case.compared(evaluated=True)[0] / LIMITS[dtype])
        count, written = work(p, case.step)
        # cosines and sines: found, scaled, cast; what turns: made and written once each way; views of these
        p.error(
            f"{counted} of a step: {what}",
            count,
            16 if p.lane == "cpu" else 8,
            reference="tables by six, a kernel each way",
            bug_above=20 if p.lane == "cpu" else 12,
        )
        if p.lane == "cpu" and heads > 1:
            p.error(
                f"written for each number: {what}",
                written / case.t.numel(),
                3,
                reference="it is written once each way",
                bug_above=8,
            )
        with torch.no_grad():
            count, _ = work(p, partial(case.turn, case.t, case.freqs, *case.more))
        p.error(
            f"{counted} without gradients: {what}",
            count,
            11 if p.lane == "cpu" else 7,
            reference="tables by six, a kernel",
            bug_above=13 if p.lane == "cpu" else 9,
        )
    p.guard("errors over their limits where work is counted", max(errors), 1, reference=EXACT)


def check_without_triton(p: probe.Probe) -> None:
    """The module is imported anew where triton is not installed; the last check, for it is not undone."""
    case = Case(p, torch.float32, (3, 1, 2, 8), True)
    before = case.step()
    module = rope(p)
    for name in [name for name in sys.modules if name.startswith(("triton", "megatron.core.fusions"))]:
        del sys.modules[name]
    sys.modules["triton"] = None  # type: ignore[assignment]
    found = p.guard_attempt("without triton: import and step", lambda: (importlib.reload(module), case.step())[1])
    unlike = found is not None and not all(map(torch.equal, found, before))
    p.guard("without triton: the result changes", unlike, 0, reference="the same with it")


def check_gpu(p: probe.Probe) -> None:
    """Capture in a graph, memory beyond what 32 bits count, and times."""
    case = Case(p, torch.bfloat16, (64, 1, 8, 64), True)
    given = case.t.clone()
    graph, out = p.graph(lambda: case.turn(given, case.freqs, *case.more))
    given.copy_(case.grad)
    graph.replay()
    unlike = not torch.equal(out, stepwise(case.grad, case.freqs, True))
    p.guard("replay of a graph on other numbers: result that differs", unlike, 0, reference=STEPS)
    step = 2**30 + 64
    far = torch.empty(2 * step + 2 * 3 * 64, dtype=torch.bfloat16, device="cuda").as_strided(
        (2, 3, 3, 64), (192, step, 64, 1)
    )
    far.copy_(tokens(p, torch.bfloat16, (2, 3, 3, 64), "whole", 5))
    freqs = angles(p, 2, 64, "whole", 6)
    unlike = not torch.equal(case.turn(far, freqs, True, 1.0), stepwise(far, freqs, True))
    p.guard("sequences 2^30 numbers apart: result that differs", unlike, 0, reference=STEPS)
    del far
    for what, heads, mla in (("MLA's queries", 32, True), ("MLA's shared key", 1, True), ("the indexer's", 32, False)):
        case = Case(p, torch.bfloat16, (12288, 1, heads, 64), mla, layout="part")
        replay = p.graph(case.step)[0].replay  # the host launches the steps of upstream slower than a GPU runs them
        p.note(f"step of 12,288 tokens: {what}", p.milliseconds(replay, 30, 10), unit="ms")


def prepare(p: probe.Probe) -> None:
    if p.lane == "cpu":
        p.triton_interpreter()
    p.megatron_cpu()


def reproduce(p: probe.Probe) -> None:
    prepare(p)
    check_work(p)
    for dtype in LIMITS:
        check_values(p, dtype)
    check_neighbours(p)
    check_contexts(p)
    if p.lane == "cuda":
        check_gpu(p)
    check_without_triton(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=48, package="megatron", minimal=minimal, prepare=prepare)
