# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""Unfused RoPE of packed sequences makes the host wait for the GPU in every call, so it cannot be captured in a graph.

It reads the sequences' lengths, and with frequencies for every packed position one offset a sequence as well. Then it
rotates and copies sequence by sequence, so what it launches grows with their number, and its backward copies the whole
gradient once a sequence. MLA without YaRN and every DSA layer must take this path: they refuse RoPE fusion. CPU lane:
reads and operators are counted. CUDA lane: PyTorch's own count of synchronising calls, times, capture and replay.
"""

from __future__ import annotations

import inspect
import itertools
import math
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reproducers import probe


def minimal():
    """The host may not read values that are on the device; a tensor on "meta" has none, so that reading one raises."""
    from types import SimpleNamespace

    import torch
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4)
    group = SimpleNamespace(size=lambda: 1, rank=lambda: 0)  # no context parallelism
    query = torch.randn(24, 4, 16, device="meta")  # two packed sequences: 24 tokens, 4 heads
    freqs = torch.randn(24, 1, 1, 16, device="meta")
    cu_seqlens = torch.tensor([0, 10, 24], device="meta", dtype=torch.int32)
    out = apply_rotary_pos_emb(query, freqs, config, cu_seqlens=cu_seqlens, cp_group=group)
    print("no value was read:", out.shape)


ROPE = "megatron.core.models.common.embeddings.rope_utils"
MANY = 16  # sequences
STYLES = {"halves": (False, False), "pairs": (True, False), "MLA": (False, True)}  # rotary_, mla_rotary_interleaved
MLA = "mla_rotary_interleaved"
FULL = [5 * i % 7 for i in range(24)]  # as a full row has: 24 sequences, four of them empty
# with a sequence of one token and an empty one, as those that pad cu_seqlens; under CP multiples of 2 * cp_size
LENGTHS: dict[int, list[list[int]]] = {
    1: [[1, 5, 0, 12, 1, 21, 0], [9], FULL],
    2: [[4, 8, 0, 20, 12, 0], [8], [4 * n for n in FULL]],
}


def ranks(size: int, rank: int) -> SimpleNamespace:
    """All that is asked of a context parallel group, as in upstream's own tests."""
    return SimpleNamespace(size=lambda: size, rank=lambda: rank)


ALONE = ranks(1, 0)


class Input:
    """Tokens t [tokens of this rank, heads, D], frequencies [rows, 1, 1, ROTATED] and a gradient, seeded."""

    def __init__(
        self,
        p: probe.Probe,
        lengths: list[int],
        rows: int,
        dtype: torch.dtype = torch.float32,
        *,
        seed: int = 0,
        group: SimpleNamespace = ALONE,
        shape: tuple[int, ...] = (3, 24, 16),
        bounds: torch.dtype = torch.int32,
    ) -> None:
        *heads, d, rotated = shape
        generator = torch.Generator().manual_seed(p.seed + seed)
        self.apply, self.config = p.upstream(ROPE).apply_rotary_pos_emb, partial(config, p)
        self.lengths, self.group, device = lengths, group, torch.cuda.current_device()
        tokens = sum(length // group.size() for length in lengths)
        normal = partial(torch.randn, generator=generator)
        self.t = normal(tokens, *heads, 8 + d).to(device, dtype)[..., 8:]  # a part of each head, as in MLA
        self.grad = normal(tokens, *heads, d).to(device, dtype)
        self.freqs = 8 * normal(rows, 1, *[1 for _ in heads], rotated).to(device)  # any angles: no two rows are alike
        self.cu = torch.tensor([0, *itertools.accumulate(lengths)], dtype=bounds).to(device)

    def rotated(self, style: str = "MLA", mscale: float = 1.0, learned: bool = False) -> tuple[Tensor, ...]:
        """Upstream's result, the gradient of t and, where they are ``learned``, that of the frequencies."""
        t, freqs = self.t.detach().requires_grad_(), self.freqs.detach().requires_grad_(learned)
        how = self.named(style)
        out = self.apply(t, freqs, cu_seqlens=self.cu, mscale=mscale, cp_group=self.group, **how)
        return out.detach(), *torch.autograd.grad(out, (t, freqs) if learned else (t,), self.grad)

    def evaluated(self, style: str, mscale: float) -> Tensor:
        """Upstream's result without gradients, of tensors that count no versions, as in inference."""
        more = {"cu_seqlens": self.cu.clone(), "mscale": mscale, "cp_group": self.group} | self.named(style)
        with torch.inference_mode():
            return self.apply(self.t, self.freqs, **more).clone()  # type: ignore[no-any-return]

    def named(self, style: str) -> dict[str, Any]:
        """How a call names a style: MLA's by its keyword, or by the configuration where the function has none."""
        pairs, mla = STYLES[style]
        if MLA in inspect.signature(self.apply).parameters:
            return {"config": self.config(pairs), MLA: mla}
        return {"config": self.config(pairs, mla)}

    def given(self) -> tuple[Tensor, ...]:
        """What a call is given, and must leave as it is."""
        return self.t, self.grad, self.freqs, self.cu


@cache
def config(p: probe.Probe, pairs: bool, mla: bool = False) -> Any:
    """Upstream's own, of which unfused RoPE asks whether neighbours or halves are paired."""
    configs = p.upstream("megatron.core.transformer.transformer_config")
    made = configs.TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, rotary_interleaved=pairs)
    made.multi_latent_attention = mla
    return made


def positions(given: Input) -> list[int]:
    """Row of the frequencies for each token, one by one: from 0 in each sequence, or from its place in the batch.

    The latter where the table has as many rows as the batch has tokens, not where it has more.
    """
    size, rank, rows, start = given.group.size(), given.group.rank(), list[int](), 0
    packed = given.freqs.shape[0] == sum(given.lengths)
    for length in given.lengths:
        part = length // (2 * size)  # of 2 * size parts of a sequence, rank r has the r-th and the r-th from the end
        end = length - length % size  # no rank has what is over
        mine = [*range(rank * part, (rank + 1) * part), *range(end - (rank + 1) * part, end - rank * part)]
        rows += [start * packed + i for i in (range(length) if size == 1 else mine)]
        start += length
    return rows


def exact(given: Input, style: str, mscale: float) -> tuple[Tensor, ...]:
    """The same in fp64: y = R x, and the gradients R^T g of x and g dR x of the angles, channels by pairs (a, b) that
    turn by an angle each."""
    pairs, mla = STYLES[style]
    places = positions(given)
    angle = given.freqs.double()[places, 0]  # [tokens, 1, rotated]
    cos, sin, n = mscale * angle.cos(), mscale * angle.sin(), angle.shape[-1]
    channels = torch.arange(n, device=angle.device)
    source = torch.cat([channels[::2], channels[1::2]]) if mla else channels  # MLA: even channels first
    if pairs:
        partner, sign = channels ^ 1, (channels % 2) * 2.0 - 1
    else:
        partner, sign = (channels + n // 2) % n, (channels >= n // 2) * 2.0 - 1
    x, g, rest = given.t.double()[..., source], given.grad.double(), (..., slice(n, None))
    y = x * cos + sign * x[..., partner] * sin
    back = g[..., :n] * cos + (sign * g[..., :n] * sin)[..., partner]
    turned = torch.empty_like(back)
    turned[..., source] = back
    by_angle = (g[..., :n] * (sign * x[..., partner] * cos - x * sin)).reshape(len(g), -1, n).sum(1)
    learned = torch.zeros_like(given.freqs, dtype=torch.float64)
    learned.view(-1, n).index_add_(0, torch.tensor(places, device=g.device), by_angle)
    return torch.cat([y, given.t.double()[rest]], -1), torch.cat([turned, g[rest]], -1), learned


def compared(given: Input, style: str = "MLA", mscale: float = 1.0) -> tuple[float, tuple[Tensor, ...]]:
    """The largest error of output and gradients against fp64, infinite if dtype or shape or what was given changed, or
    another output came without gradients; and output and gradient of the tokens."""
    before = [tensor.clone() for tensor in given.given()]
    made = given.rotated(style, mscale, learned=True)
    alike = torch.equal(given.evaluated(style, mscale), made[0])
    worst = 0.0 if alike and all(map(torch.equal, given.given(), before)) else math.inf
    for found, true, like in zip(made, exact(given, style, mscale), (given.t, given.t, given.freqs), strict=True):
        alike = found.dtype == like.dtype and found.shape == true.shape
        worst = max(worst, ((found.double() - true).norm() / true.norm()).item() if alike else math.inf)
    return worst, made[:2]


def check_values(p: probe.Probe, dtype: torch.dtype, limit: float) -> None:
    """Both kinds of frequencies, all styles, ranks of CP, partly rotated heads: right, and as ever bit by bit."""
    name = str(dtype).removeprefix("torch.")
    for size in LENGTHS:
        worst, kept = 0.0, list[Tensor]()
        for lengths, rank, packed, style in itertools.product(LENGTHS[size], range(size), (False, True), STYLES):
            mscale = 1.25 if style == "MLA" else 1.0
            lengths = [n for n in lengths if n or style != "pairs"]  # these are a case of their own
            rows = sum(lengths) if packed else max(lengths) + 3
            error, made = compared(Input(p, lengths, rows, dtype, group=ranks(size, rank)), style, mscale)
            worst, kept = max(worst, error), [*kept, *made]
        p.guard(f"output and gradient, {name}, CP={size}", worst, limit, reference="fp64 rotation of each token")
        p.digest(f"{name}, CP={size}: outputs and gradients", *kept)


def check_drawn(p: probe.Probe, dtype: torch.dtype, limit: float) -> None:
    """Shapes, sizes of CP and tables that nobody can foresee, each with a second batch in the same tensors."""
    from hypothesis import strategies as st

    name, kept = str(dtype).removeprefix("torch."), list[Tensor]()

    def measure(
        size: int,
        rank: int,
        parts: list[int],
        table: str,
        style: str,
        heads: int,
        channels: tuple[int, int],
        mscale: float,
        bounds: torch.dtype,
        over: int,
    ) -> float:
        parts = [n for n in parts if n or style != "pairs"]
        lengths = [n if size == 1 else 2 * size * n + over % size * (n > 0) for n in parts]
        rows = {"whole batch": sum(lengths), "longer": sum(lengths) + 5, "longest sequence": max(lengths)}[table]
        shape = (heads, 2 * channels[0] + channels[1], 2 * channels[0])  # rotated in part where channels[1] is not 0
        given = Input(p, lengths, rows, dtype, group=ranks(size, rank % size), shape=shape, bounds=bounds)
        first, made = compared(given, style, mscale)
        given.lengths = lengths[::-1]
        given.cu.data.copy_(torch.tensor([0, *itertools.accumulate(given.lengths)]))  # the version stays as it was
        second, again = compared(given, style, mscale)
        kept.extend((*made, *again))
        return max(first, second)

    space = {
        "size": st.integers(1, 4),
        "rank": st.integers(0, 11),
        "parts": st.one_of(*(st.lists(st.integers(0, 5), min_size=n, max_size=n + 6) for n in (0, 18))).filter(any),
        "table": st.sampled_from(["whole batch", "longer", "longest sequence"]),
        "style": st.sampled_from(list(STYLES)),
        "heads": st.integers(1, 3),
        "channels": st.tuples(st.integers(1, 5), st.integers(0, 3)),
        "mscale": st.sampled_from([1.0, 0.5, 1.25]),
        "bounds": st.sampled_from([torch.int32, torch.int64]),
        "over": st.integers(0, 3),  # beyond a multiple of the ranks
    }
    p.drawn(
        f"output and gradient, {name}, drawn",
        measure,
        limit,
        space=space,
        count=24,
        reference="fp64 rotation of each token",
    )
    p.digest(f"{name}, drawn: outputs and gradients", *kept)


def check_shapes(p: probe.Probe) -> None:
    """Streams beyond 16-bit positions, and tokens of fewer and of more dimensions than heads and channels."""
    for what, lengths, size, shape in (
        ("70,000 tokens", [40000, 1, 0, 29999], 1, (1, 2, 2)),
        ("70,000 tokens, CP=2", [40000, 4, 0, 29996], 2, (1, 2, 2)),
        ("no heads", [3, 1, 5], 1, (6, 4)),
        ("heads in groups", [3, 1, 5], 1, (2, 3, 6, 4)),
    ):
        errors = [
            compared(Input(p, lengths, rows, group=ranks(size, size - 1), shape=shape))[0]
            for rows in (sum(lengths), max(lengths))
        ]
        p.guard(f"output and gradient, {what}", max(errors), 1e-6, reference="fp64 rotation of each token")


def check_long(p: probe.Probe) -> None:
    """Streams of more tokens than fp32 counts: the last of them turn by their own row's angles."""
    tokens, worst = 2**24 + 40, 0.0
    device = torch.cuda.current_device()
    t = torch.ones(tokens, 1, 2, dtype=torch.bfloat16, device=device)
    cu = torch.tensor([0, tokens - 30, tokens], dtype=torch.int32, device=device)
    for rows in (tokens, tokens - 30):
        angle = (torch.arange(rows, device=device) % 1021).float().view(rows, 1, 1, 1).expand(rows, 1, 1, 2)
        apply = p.upstream(ROPE).apply_rotary_pos_emb
        with torch.no_grad():
            out = apply(t, angle, config(p, False), cu_seqlens=cu, cp_group=ALONE)
        own = torch.arange(tokens - 60, tokens, device=device)  # 30 of each sequence
        own = own if rows == tokens else torch.where(own < tokens - 30, own, own - (tokens - 30))
        a = (own % 1021).double()
        want = torch.stack([a.cos() - a.sin(), a.cos() + a.sin()], -1)[:, None]
        worst = max(worst, ((out[-60:].double() - want).norm() / want.norm()).item())
    p.guard("output, the last of 2**24 tokens", worst, 2**-7, reference="fp64 rotation of each token")


def check_tables(p: probe.Probe) -> None:
    """Frequencies in bf16, as a model that was cast whole has them, and tokens that are not packed at all."""
    errors = []
    for style, rows, size in itertools.product(STYLES, (26, 15), (1, 2)):
        given = Input(p, [4, 12, 8, 2] if size == 1 else [4, 12, 8], rows, torch.bfloat16, group=ranks(size, size - 1))
        given.freqs = given.freqs.bfloat16()
        errors.append(compared(given, style)[0])
    # bf16 rounds the cosine and the sine of a bf16 angle, too, and adds up the gradient of each angle
    p.guard("output and gradient, bf16 table", max(errors), 2**-6, reference="fp64 rotation of each token")
    whole, kept = Input(p, [24], 24), list[Tensor]()
    for style in STYLES:
        t = whole.t.reshape(12, 2, 3, 24).detach().requires_grad_()
        out = whole.apply(t, whole.freqs[:12], cp_group=ALONE, **whole.named(style))
        kept += [out.detach(), *torch.autograd.grad(out.square().sum(), t)]
    p.digest("tokens that are not packed: outputs and gradients", *kept)


def check_empty(p: probe.Probe) -> None:
    """cu_seqlens is padded by empty sequences, which one by one have no shape to be inferred."""
    given = Input(p, [6, 0, 7], 9)
    signature = probe.Signature("RuntimeError", "cannot reshape tensor of 0 elements", ROPE.replace(".", "/") + ".py")
    done = p.attempt("an empty sequence, pairs of neighbours", partial(given.rotated, "pairs"), signature)
    if done is not None:
        off = (done[0].double() - exact(given, "pairs", 1.0)[0]).norm() / given.t.double().norm()
        p.error(
            "output beside an empty sequence, pairs of neighbours",
            off.item(),
            1e-6,
            reference="fp64 rotation of each token",
            bug_above=1e-2,
        )


def check_work(p: probe.Probe) -> int:
    """A forward and backward of MANY sequences against one: the same tokens, and a table longer than any sequence.

    Returns how many waits were seen.
    """
    tokens, work = 256, []
    make = partial(Input, p, dtype=torch.bfloat16, shape=(8, 64, 64))
    errors, waits = [], 0
    for count in (1, MANY):
        given = make([tokens // count] * count, tokens + 1)
        errors.append(compared(given)[0])
        work.append(p.operators(given.rotated))
        p.note(f"operators dispatched, sequences: {count}", work[-1].count)
    tables = {
        "frequency table: one for the longest sequence": tokens + 1,
        "frequency table: one for the whole batch": tokens,
    }
    for (kind, rows), size in itertools.product(tables.items(), (1, 2)):
        given, kind = make([tokens // MANY] * MANY, rows, group=ranks(size, size - 1)), kind + ", CP=2" * (size - 1)
        errors.append(compared(given)[0])
        places = p.waits(given.rotated)
        waits += places.total()
        p.error(
            f"waits in a call, {kind}",
            places.total(),
            0,
            reference="none needed: the host knows all shapes",
            bug_above=1,
        )
        p.note(f"places of these waits, {kind}", str(places))
    # bf16 rounds as in check_values; a call that does less than its work has no operators either
    p.guard(
        "output and gradient where operators and waits are counted",
        max(errors),
        2**-7,
        reference="fp64 rotation of each token",
    )
    one, many = work
    p.error(
        f"operators for {MANY} sequences over those for one",
        many.count / one.count,
        1.5,
        # equal but for a way that treats one sequence apart, or one operator for each sequence's offset
        reference="tokens are rotated independently of each other",
        bug_above=8,
    )
    p.error(
        f"elements written for {MANY} sequences over those for one",
        many.written / one.written,
        1.05,
        # equal but for a few elements a sequence
        reference="tokens are rotated independently of each other",
        bug_above=1.5,
    )
    tokens, count = 8192, 512
    narrow = [Input(p, [tokens // n] * n, tokens + 1, shape=(1, 4, 4)) for n in (1, count)]
    p.guard(
        f"output and gradient, {count} sequences",
        max(compared(given)[0] for given in narrow),
        1e-6,
        reference="fp64 rotation of each token",
    )
    one, many = (p.operators(given.rotated) for given in narrow)
    p.error(
        f"elements written for {count} sequences of one narrow head over those for one",
        many.written / one.written,
        1.25,  # some elements a sequence; one for each pair of a token and a sequence were eight times as many
        reference="tokens are rotated independently of each other",
        bug_above=1.5,
    )
    return waits


def check_without_values(p: probe.Probe) -> None:
    """A tensor on "meta" has a shape and no values: what no count has seen raises there, or ends the process."""
    given = Input(p, [6, 0, 7], 13)
    for name in ("t", "grad", "freqs", "cu"):
        setattr(given, name, getattr(given, name).to("meta"))
    signature = probe.Signature("RuntimeError", "meta tensor", ROPE.replace(".", "/") + ".py")
    p.attempt("tensors without values", given.rotated, signature)


def check_taken(p: probe.Probe) -> None:
    """What is refused does not change. Refusals on a device end the process, so the lengths are on the host."""
    said = []
    for what, tokens, rows, size in (
        ("fit", 26, 20, 1),
        ("more tokens", 30, 20, 1),
        ("fewer tokens", 22, 20, 1),
        ("few rows", 26, 9, 1),
        ("two parts of six and a half tokens", 26, 20, 2),
    ):
        if p.lane == "cpu" or what == "fit":
            group = ranks(size, 0)
            given, whole = Input(p, [13 * size] * 2, rows, group=group), Input(p, [tokens * size], rows, group=group)
            given.t, given.grad, given.cu = whole.t, whole.grad, given.cu.cpu()
            try:
                given.rotated()
                said.append(f"{what}: taken")
            except Exception:
                said.append(f"{what}: refused")
    p.note("lengths on the host", "; ".join(said))
    p.digest("lengths on the host: what is taken and refused", "; ".join(said).encode())


def check_times(p: probe.Probe) -> None:
    """A forward and backward at the size of an attention layer's queries."""
    tokens, heads, d, took = 16384, 28, 64, {}
    for count in (1, 8, 32):
        given = Input(p, [tokens // count] * count, tokens + 1, torch.bfloat16, shape=(heads, d, d))
        took[count] = p.milliseconds(given.rotated, repeats=11, warm=3)
        p.note(f"forward and backward, T {tokens}, {heads} heads, sequences: {count}", took[count], unit="ms")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        given.rotated()
        p.note(
            f"peak beyond the inputs, sequences: {count}",
            (torch.cuda.max_memory_allocated() - before) / 2**20,
            unit="MiB",
        )
    p.error(
        "time of 32 sequences over that of one",
        took[32] / took[1],
        1.25,  # the same kernels, and noise
        reference="tokens are rotated independently of each other",
        bug_above=2,
    )


def check_capture(p: probe.Probe) -> None:
    """Capture, then replay on other tokens and lengths; a failed capture leaves the process unfit: this comes last."""
    make = partial(Input, p, rows=300, dtype=torch.bfloat16, shape=(8, 64, 64))
    static, new = make([200, 1, 0, 255]), make([17, 290, 149, 0], seed=1)
    signature = probe.Signature("RuntimeError", "(?i)captur", ROPE.replace(".", "/") + ".py")
    done = p.attempt("capture in a CUDA graph", partial(p.graph, static.rotated), signature)
    if done is None:
        return
    graph, made = done
    eager = new.rotated()
    for name in ("t", "grad", "freqs", "cu"):
        getattr(static, name).copy_(getattr(new, name))
    for tensor in made:
        tensor.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    wrong = sum(int((a != b).sum()) for a, b in zip(made, eager, strict=True))
    p.error("elements of a replay that differ, other lengths", wrong, 0, reference="eager", bug_above=1)


def reproduce(p: probe.Probe) -> None:
    p.megatron_cpu()
    # fp32 rounds products and the sum. bf16 rounds cosine, sine, both products and the sum to 2**-9; the two terms of a
    # pair of channels have at most sqrt(2) of its norm, so that (2 sqrt(2) + 1) 2**-9 is all that can be lost
    check_values(p, torch.float32, 1e-6)
    check_values(p, torch.bfloat16, 2**-7)
    check_drawn(p, torch.float32, 1e-6)
    check_drawn(p, torch.bfloat16, 2**-7)
    check_shapes(p)
    check_long(p)
    check_tables(p)
    check_empty(p)
    if not check_work(p):
        check_without_values(p)
    check_taken(p)
    if p.lane == "cuda":
        check_times(p)
        check_capture(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=33, package="megatron", minimal=minimal, prepare=lambda p: p.megatron_cpu())
