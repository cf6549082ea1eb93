# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "transformer-engine==2.13.0", "torch>=2.8", "triton==3.6.0", "tilelang==0.1.8",
#     "numpy", "einops", "packaging", "pydantic", "hypothesis",
# ]
# ///
"""Megatron's TileLang DSA hooks take a Float8Tensor for bf16, and two of three hand kernels its NULL pointer.

Transformer Engine's Float8Tensor calls itself bf16 and has no storage: ``data_ptr()`` is 0 without an error, and
``contiguous()``, ``to(bfloat16)``, views and slices keep the wrapper. The hooks' guard asks for the dtype only. Sparse
attention permutes first, which happens to dequantize; the indexer and its loss slice, which does not.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from reproducers import probe


def minimal():
    """The top-k hook hands its kernel a Float8Tensor, whose data pointer is NULL."""
    from unittest import mock

    import torch
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa
    from transformer_engine.pytorch import Float8Quantizer
    from transformer_engine_torch import DType

    device = "cuda" if torch.cuda.is_available() else "cpu"
    scale, amax = torch.ones(1, device=device), torch.zeros(1, device=device)
    x = torch.randn(64, 1, 64, 128, device=device, dtype=torch.bfloat16)  # [sq, b, heads, d]
    q = Float8Quantizer(scale=scale, amax=amax, fp8_dtype=DType.kFloat8E4M3)(x)
    rows = torch.arange(64, dtype=torch.int32, device=device)
    with mock.patch.object(tilelang_dsa, "lighting_indexer_indices") as kernel:
        kernel.return_value = rows[:, None]
        tilelang_dsa.run_fused_qk_topk(q, x[:, :, 0], x[..., 0], 1, rows, rows + 1, 64)
    assert kernel.call_args.args[0].data_ptr() != 0, "the kernel is handed a NULL pointer for q"


S, B, HEADS, D, D_V = 256, 2, 16, 576, 512  # absorbed MLA; 256 rows are a whole bucket, so that nothing is padded
INDEX_HEADS, INDEX_D, TOPK = 64, 128, 64
SCALE = 16.0  # a power of two: the scale itself rounds nothing
FORMATS = {"e4m3": ("kFloat8E4M3", torch.float8_e4m3fn), "e5m2": ("kFloat8E5M2", torch.float8_e5m2)}
HOOKS = {"top-k": ("q", "k"), "loss": ("q", "k", "query", "key")}  # and the arguments that may be wrapped
OPS = "megatron.core.transformer.experimental_attention_variant.ops."
WRAPPED, PLAIN = "stays wrapped, NULL", "plain, real pointer"
CONTRACT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "x.contiguous()": (lambda x: x.contiguous(), WRAPPED),
    "x.to(torch.bfloat16)": (lambda x: x.to(torch.bfloat16), WRAPPED),
    "x.detach()": (lambda x: x.detach(), WRAPPED),
    "x.view(-1, D)": (lambda x: x.view(-1, D), WRAPPED),
    "x.reshape(S, -1)": (lambda x: x.reshape(S, -1), WRAPPED),
    "x[:, 0]": (lambda x: x[:, 0], WRAPPED),
    "x[2:4]": (lambda x: x[2:4], WRAPPED),
    "x[:, 0].contiguous()": (lambda x: x[:, 0].contiguous(), WRAPPED),
    "x.dequantize()": (lambda x: x.dequantize(), PLAIN),
    "x.float()": (lambda x: x.float(), PLAIN),
    "x.permute(1, 0, 2, 3)": (lambda x: x.permute(1, 0, 2, 3), PLAIN),
    "x.unsqueeze(0)": (lambda x: x.unsqueeze(0), PLAIN),
    "x + 0": (lambda x: x + 0, PLAIN),
    "torch.nn.functional.pad(x, (0, 16))": (lambda x: torch.nn.functional.pad(x, (0, 16)), PLAIN),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "torch.from_dlpack(x)": torch.from_dlpack,  # how a foreign function interface asks for the memory
    "x.clone()": lambda x: x.clone(),
    "x.view(torch.uint8)": lambda x: x.view(torch.uint8),
    "x.cpu()": lambda x: x.cpu(),
    "x.to(torch.bfloat16, copy=True)": lambda x: x.to(torch.bfloat16, copy=True),
    "torch.nn.Parameter(x)": torch.nn.Parameter,
}


class Inputs:
    """One set of the hooks' arguments; ``plain`` is what the Float8Tensors hold, computed here in torch alone."""

    def __init__(
        self,
        te: types.ModuleType,
        tex: Any,
        device: torch.device,
        rows: int = S,
        batch: int = B,
        scale: float = SCALE,
        format: str = "e4m3",
        nominal: torch.dtype = torch.bfloat16,
    ) -> None:
        held, cast = FORMATS[format]

        def pair(*shape: int) -> tuple[Tensor, Tensor]:
            """(Float8Tensor, its bf16 values): E4M3 keeps 4 significant bits, E5M2 3, which bf16 holds exactly."""
            source = torch.randn(*shape, device=device).clamp(-4, 4).bfloat16()
            by = torch.full((1,), scale, device=device)
            quantizer = te.Float8Quantizer(scale=by, amax=torch.zeros_like(by), fp8_dtype=getattr(tex.DType, held))
            values = (source.float() * scale).to(cast).float() / scale
            return quantizer(source.to(nominal)), values.to(nominal)

        shapes = {"query": (rows, batch, HEADS, D), "key": (rows, batch, 1, D)}
        shapes |= {"q": (rows, batch, INDEX_HEADS, INDEX_D), "k": (rows, batch, INDEX_D)}
        both = {name: pair(*shape) for name, shape in shapes.items()}
        self.quantized = {name: value[0] for name, value in both.items()}
        self.plain = {name: value[1] for name, value in both.items()}
        self.rows = rows
        self.weights = torch.rand(rows, batch, INDEX_HEADS, device=device, dtype=torch.bfloat16)
        self.starts = torch.zeros(rows, dtype=torch.int32, device=device)
        self.ends = torch.arange(1, rows + 1, dtype=torch.int32, device=device)  # causal
        self.topk = torch.arange(TOPK, device=device).expand(batch, rows, TOPK).contiguous()

    def kernel_sees(self, kernel: str, b: int) -> tuple[Tensor, Tensor]:
        """The two arguments that a kernel should be handed for batch entry ``b``."""
        if kernel == "indexer":
            return self.plain["q"][:, b].reshape(-1, INDEX_D), self.plain["k"][:, b]
        if kernel == "loss target":
            return self.plain["query"][:, b], self.plain["key"][:, b, 0]
        return self.plain["query"].transpose(0, 1), self.plain["key"].transpose(0, 1)  # every batch entry at once


def kind(call: Callable[[Any], Any], x: Any) -> str:
    """What an operation makes of a Float8Tensor: still the wrapper or a plain tensor, with memory or without."""
    try:
        made = call(x)
        pointer = "real pointer" if made.data_ptr() else "NULL"
    except Exception as error:
        return f"raises {type(error).__name__}"
    return f"{'plain' if type(made) is Tensor else 'stays wrapped'}, {pointer}"


def check_contract(p: probe.Probe, x: Any, values: Tensor) -> None:
    """What the wrapper does at the boundary; Transformer Engine is not patched, so this holds in both arms."""
    nominal = [isinstance(x, Tensor), x.dtype == torch.bfloat16, x.data_ptr() == 0, x._data.data_ptr() != 0]
    p.guard(
        "Float8Tensor: not a bf16 Tensor of NULL pointer with its bytes elsewhere",
        nominal.count(False),
        0,
        reference="4 statements",
    )
    seen = {name: kind(call, x) for name, (call, _) in CONTRACT.items()}
    others = [f"{name}: {seen[name]}" for name, (_, expected) in CONTRACT.items() if seen[name] != expected]
    p.guard(
        "Float8Tensor: operations that do otherwise",
        len(others),
        0,
        reference="; ".join(others) or f"the contract's {len(CONTRACT)}",
    )
    p.guard(
        "Float8Tensor: values of dequantize() that differ",
        (x.dequantize() != values).sum().item(),
        0,
        reference="cast to E4M3 in torch, over the scale",
    )
    for name, made in [*seen.items(), *((name, kind(call, x)) for name, call in OTHERS.items())]:
        p.note(name, made)


class Refused(Exception):
    """A kernel was handed a tensor without memory."""


class Boundary:
    """Records what upstream hands to each of its TileLang kernels, which is what this pack is about.

    Then the real kernel runs on the cuda lane, and torch does its work on the cpu lane.
    """

    def __init__(self, p: probe.Probe) -> None:
        self.p, self.calls = p, list[tuple[str, tuple[Any, ...]]]()
        self._watch("tilelang_indexer_fwd", "_get_indexer_fwd_kernel", "indexer", self._logits)
        self._watch("tilelang_indexer_fwd", "_get_clean_logits_kernel", "mask", self._mask)
        self._watch("tilelang_indexer_loss", "_get_target_kernel", "loss target", self._target)
        self._watch("tilelang_sparse_mla_fwd", "_get_sparse_mla_fwd_kernel", "sparse attention", self._attend)

    def _watch(self, module: str, getter: str, name: str, in_torch: Callable[..., Any]) -> None:
        home = self.p.upstream(OPS + module)
        real = getattr(home, getter)

        def get(*args: Any, **options: Any) -> Callable[..., Any]:
            kernel = real(*args, **options) if self.p.lane == "cuda" else in_torch

            def launch(*tensors: Any) -> Any:
                self.calls.append((name, tensors))
                if all(t.data_ptr() for t in tensors):
                    return kernel(*tensors)
                raise Refused(self._answer(kernel, tensors) if self.p.lane == "cuda" else "")

            return launch

        setattr(home, getter, get)

    @staticmethod
    def _answer(kernel: Callable[..., Any], tensors: tuple[Any, ...]) -> str:
        """What TileLang says to a NULL pointer: its host code looks before it launches."""
        try:
            kernel(*tensors)
            torch.cuda.synchronize()
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        return "returned"

    @staticmethod
    def _logits(q: Tensor, k: Tensor, logits: Tensor, weights: Tensor, starts: Tensor, ends: Tensor) -> None:
        """q [s h, d], k [t, d], weights [s, h] -> logits [s, t]: sum over heads of w relu(q.k)."""
        scores = (q.float() @ k.float().T).relu().view(*weights.shape, -1)  # [s, h, t]
        logits.copy_(torch.einsum("sht,sh->st", scores, weights))

    @staticmethod
    def _mask(logits: Tensor, starts: Tensor, ends: Tensor) -> None:
        t = torch.arange(logits.shape[1], device=logits.device)
        logits.masked_fill_((t < starts[:, None]) | (t >= ends[:, None]), float("-inf"))

    @staticmethod
    def _target(query: Tensor, key: Tensor, topk: Tensor) -> Tensor:
        """query [s, h, d], key [t, d], topk [s, j] -> [s, j]: attention probabilities summed over heads."""
        scores = torch.einsum("shd,sjd->shj", query.float(), key.float()[topk.clamp(min=0).long()]) * D**-0.5
        scores = scores.masked_fill((topk < 0)[:, None], float("-inf"))
        return scores.softmax(-1).nan_to_num().sum(1)

    @staticmethod
    def _attend(q: Tensor, kv: Tensor, topk: Tensor) -> tuple[Tensor, Tensor]:
        """q [b, s, h, d], kv [b, t, 1, d], topk [b, s, 1, j] -> out [b, s, h, d_v] and logsumexp [b, s, h]."""
        batch = torch.arange(len(kv), device=kv.device)[:, None, None]
        chosen = kv[batch, topk[:, :, 0].long(), 0].float()  # [b, s, j, d]
        scores = torch.einsum("bshd,bsjd->bshj", q.float(), chosen) * D**-0.5
        out = torch.einsum("bshj,bsjd->bshd", scores.softmax(-1), chosen[..., :D_V])
        return out.to(q.dtype), scores.logsumexp(-1)


def run(p: probe.Probe, hook: str, x: Inputs, given: dict[str, Any]) -> Any:
    """One hook's result (a tensor) as Megatron's DSA layer calls it; None where it declines."""
    dsa = p.upstream(OPS + "tilelang_dsa")
    query, key = given["query"].detach(), given["key"].detach()  # as dsa.py detaches them for the loss
    if hook == "attention":
        return dsa.run_fused_absorbed_sparse_attention(query, key, x.topk, D**-0.5, D_V)
    index = (given["q"], given["k"], x.weights, TOPK, x.starts, x.ends, x.rows)
    if hook == "top-k":
        found = dsa.run_fused_qk_topk(*index)
        return found if found is None else found.sort(-1)[0]  # the hook leaves them unsorted
    options = {"softmax_scale": D**-0.5, "loss_coeff": 1.0, "pg_collection": types.SimpleNamespace(tp=None)}
    both = dsa.run_fused_qk_topk_with_loss(*index, query=query, key=key, **options)
    return both if both is None else both[1]


def handed(
    p: probe.Probe, boundary: Boundary, x: Inputs, hook: str, kernel: str, names: Iterable[str]
) -> tuple[Any, str, int, int]:
    """Quantize arguments of a hook: its result, TileLang's answer, its calls of the kernel, arguments not plain."""
    made, answer = None, ""
    boundary.calls.clear()
    try:
        made = run(p, hook, x, x.plain | {name: x.quantized[name] for name in names})
    except Refused as error:
        answer = str(error)
    given = [tensors[:2] for name, tensors in boundary.calls if name == kernel]
    bad = 0
    for call, pair in enumerate(given):  # one call a batch entry, as many as there are
        wanted = x.kernel_sees(kernel, call)
        for t, w in zip(pair, wanted, strict=True):
            bad += type(t) is not Tensor or not t.data_ptr() or not torch.equal(t, w)
    return made, answer, len(given), bad


def check_hook(p: probe.Probe, boundary: Boundary, x: Inputs, hook: str, kernel: str, names: tuple[str, str]) -> None:
    """Quantize two arguments of a hook and look at what its kernel is given for them."""
    title = f"{hook} hook, {kernel} kernel"
    # The permute of the attention hook dequantizes, so that must hold in both arms.
    exact: Callable[..., None] = p.guard if hook == "attention" else p.error
    bug = {} if hook == "attention" else {"bug_above": 2}
    made, answer, calls, bad = handed(p, boundary, x, hook, kernel, names)
    exact(
        f"{title}: not plain, of {' and '.join(names)}",
        bad if calls else float("nan"),
        0,
        reference=f"type, pointer and bits in {calls} calls",
        **bug,
    )
    truth = run(p, hook, x, x.plain)
    p.guard(f"{title}: declines plain bf16", truth is None, 0, reference="serves it")
    wide = {name: value.float() for name, value in x.plain.items()}
    p.guard(f"{title}: serves fp32", run(p, hook, x, wide) is not None, 0, reference="declines it")
    if made is not None and truth is not None:
        exact(
            f"{title}: results that differ",
            (made != truth).float().mean().item(),
            0,
            reference="plain bf16 tensors of these values",
        )
    if answer:
        p.note(f"{title}: TileLang's answer", answer)


def check_alone(p: probe.Probe, boundary: Boundary, x: Inputs) -> None:
    """One argument of the loss quantized, the other three plain: neither decides for another."""
    truth = run(p, "loss", x, x.plain)
    for name in HOOKS["loss"]:
        made, _, _, bad = handed(p, boundary, x, "loss", "indexer", {name})
        p.error(
            f"loss hook, {name} alone: not as with plain tensors",
            made is None or bad or not made.equal(truth),
            0,
            reference="the result, and what the indexer kernel is handed",
            bug_above=1,
        )


def check_rewritten(p: probe.Probe, boundary: Boundary, x: Inputs, other: Inputs) -> None:
    """Quantized tensors that get other values in place, as those of the next step: the values of now count."""
    for name in x.quantized:
        x.quantized[name]._data.copy_(other.quantized[name]._data)  # of the same scale
    x.plain = other.plain
    for hook, names in HOOKS.items():
        made, _, calls, bad = handed(p, boundary, x, hook, "indexer", names)
        stale = not calls or made is None or bad or not made.equal(run(p, hook, x, x.plain))
        p.error(
            f"{hook} hook, written anew in place: not as with plain tensors",
            stale,
            0,
            reference="the result, and what the indexer kernel is handed",
            bug_above=1,
        )


def leads_to(loss: Tensor, leaf: Tensor) -> bool:
    """Whether the backward of ``loss`` would come to ``leaf``; nothing is computed."""
    waiting, seen = [loss.grad_fn], set[Any]()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", None) is leaf:
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


def check_class(p: probe.Probe, boundary: Boundary, x: Inputs) -> None:
    """A quantized tensor of another class, as those of other recipes have."""
    known = type(x.quantized["q"])

    def dequantize(self: Any, *given: Any, **asked: Any) -> Tensor:
        """Transformer Engine's C++ knows its own classes only, by their exact type."""
        self.__class__ = known
        try:
            return known.dequantize(self, *given, **asked)
        finally:
            self.__class__ = other

    other = type("OtherTensor", (known,), {"dequantize": dequantize})
    for value in x.quantized.values():
        value.__class__ = other
    for hook, names in HOOKS.items():
        made, _, calls, bad = handed(p, boundary, x, hook, "indexer", names)
        wrong = not calls or made is None or bad or not made.equal(run(p, hook, x, x.plain))
        p.error(
            f"{hook} hook, quantized tensors of another class: not as with plain tensors",
            wrong,
            0,
            reference="the result, and what the indexer kernel is handed",
            bug_above=1,
        )


def check_nominal(p: probe.Probe, boundary: Boundary, new: Callable[..., Inputs]) -> None:
    """The kernels are compiled for bf16: what is quantized of another dtype is declined, as a plain tensor of it is."""
    for nominal in (torch.float16, torch.float32):
        x, served = new(nominal=nominal), 0
        for hook in HOOKS:
            for given in (x.plain, x.quantized):
                try:
                    served += run(p, hook, x, x.plain | given) is not None
                except Refused:
                    served += 1
        p.guard(f"tensors of {str(nominal)[6:]}, plain or in name: hooks that serve them", served, 0, reference="none")


def check_work(p: probe.Probe, boundary: Boundary, x: Inputs) -> None:
    """Queries are gone through in blocks; what is quantized is read once, whatever their number."""
    known, numbers = type(x.quantized["q"]), 0
    plainly = known.dequantize

    def dequantize(self: Any, *given: Any, **asked: Any) -> Tensor:
        nonlocal numbers
        numbers += self.numel()
        return plainly(self, *given, **asked)  # type: ignore[no-any-return]

    x.rows //= 4  # rows of a block
    for hook, names in HOOKS.items():
        numbers, given = 0, {name: x.quantized[name] for name in names}
        with mock.patch.object(known, "dequantize", dequantize):
            try:
                run(p, hook, x, x.plain | given)
            except Refused:
                continue
        each = numbers / sum(one.numel() for one in given.values())
        p.error(f"{hook} hook, four blocks: numbers dequantized of each that is given", each, 1, reference="once")


def check_without(p: probe.Probe, boundary: Boundary, x: Inputs) -> None:
    """Where Transformer Engine cannot be imported plain tensors are served all the same."""
    truth = {hook: run(p, hook, x, x.plain) for hook in HOOKS}
    mine = ("megatron.core.fp8_utils", OPS + "tilelang_dsa", OPS + "dsa_layout")
    parent = sys.modules[OPS.rstrip(".")]
    kept = {name.rpartition(".")[2]: getattr(parent, name.rpartition(".")[2], None) for name in mine[1:]}
    gone = {name: None for name in sys.modules if name.partition(".")[0] == "transformer_engine"}
    with mock.patch.dict(sys.modules, gone):
        for name in mine:
            sys.modules.pop(name, None)
        wrong = sum(
            run(p, hook, x, x.plain) is None or not run(p, hook, x, x.plain).equal(truth[hook]) for hook in HOOKS
        )
    for name, module in kept.items():
        if module is not None:
            setattr(parent, name, module)
    p.guard("without Transformer Engine: plain tensors declined or wrong", wrong, 0, reference="as with it")


def check_gradient(p: probe.Probe, boundary: Boundary, x: Inputs) -> None:
    """A fix must not cut a trained q off from the indexer's loss."""
    for name, given in (("plain", x.plain), ("Float8Tensor", x.quantized)):
        q = given["q"].detach().requires_grad_()
        try:
            loss = run(p, "loss", x, x.plain | {"q": q})
        except Refused:
            continue
        p.error(
            f"indexer loss does not depend on a {name} q",
            loss is None or not leads_to(loss, q),
            0,
            reference="a way from the loss to q in autograd's graph",
        )


def check_drawn(p: probe.Probe, boundary: Boundary, new: Callable[..., Inputs]) -> None:
    """Any of a hook's arguments quantized, by any scale, in either format: its result is that of plain tensors."""
    from hypothesis import strategies as st

    def measure(hook: str, names: set[str], rows: int, batch: int, power: int, format: str, seed: int) -> float:
        torch.manual_seed(seed)
        x = new(rows, batch, 2.0**power, format)
        made, _, calls, bad = handed(p, boundary, x, hook, "indexer", names & set(HOOKS[hook]))
        if made is None or not calls:
            return 1.0
        return float(bad or not torch.equal(made, run(p, hook, x, x.plain)))

    space = {
        "hook": st.sampled_from(sorted(HOOKS)),
        "names": st.sampled_from([{"q"}, {"k"}, {"q", "k", "query", "key"}]),
        "rows": st.sampled_from([S, 2 * S]),
        "batch": st.integers(1, 2),
        "power": st.integers(-1, 6),
        "format": st.sampled_from(sorted(FORMATS)),
        "seed": st.integers(0, 9999),
    }
    p.drawn(
        "drawn hooks, arguments and scales: not as with plain tensors",
        measure,
        0,
        space=space,
        count=5,
        reference="type, pointer and bits of what the kernel is handed, and the result",
        bug_above=0.5,
    )


def reproduce(p: probe.Probe) -> None:
    te = p.transformer_engine()
    dsa = p.upstream(OPS + "tilelang_dsa")
    if dsa.SparseMLA is None or dsa.lighting_indexer is None:
        raise probe.CannotTest("tilelang cannot be imported", "pass --needs DIR with its package")
    device = torch.device("cuda" if p.lane == "cuda" else "cpu")
    torch.manual_seed(p.seed)
    new = partial(Inputs, te, importlib.import_module("transformer_engine_torch"), device)
    x = new()
    check_contract(p, x.quantized["query"], x.plain["query"])
    if p.lane == "cpu":  # the loss takes its kernel for tensors on a GPU only
        torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment,misc,method-assign]
    boundary = Boundary(p)
    with torch.no_grad():
        check_hook(p, boundary, x, "top-k", "indexer", ("q", "k"))
        check_hook(p, boundary, x, "loss", "indexer", ("q", "k"))
        check_hook(p, boundary, x, "loss", "loss target", ("query", "key"))
        check_hook(p, boundary, x, "attention", "sparse attention", ("query", "key"))
        check_drawn(p, boundary, new)
        check_alone(p, boundary, x)
        check_rewritten(p, boundary, x, new())
        check_class(p, boundary, new())
        check_nominal(p, boundary, new)
        check_work(p, boundary, new())
    check_gradient(p, boundary, x)
    with torch.no_grad():
        check_without(p, boundary, x)


if __name__ == "__main__":
    probe.main(reproduce, pack=3, package="megatron", minimal=minimal, prepare=lambda p: p.transformer_engine())
