# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""MTP's roll of packed sequences makes the host wait for the GPU four times a sequence, so no CUDA graph can hold it.

Without context parallelism ``roll_tensor`` cuts the stream sequence by sequence at bounds that are on the GPU: each use
of a bound in a slice is a read, and each sequence is rolled, zeroed and copied on its own. Labels, loss mask, token and
position ids go through it at every depth of multi-token prediction. CPU lane: reads and operators are counted. CUDA
lane: PyTorch's own count of synchronising calls, times, capture and replay.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reproducers import probe


def minimal():
    """The host may not read values that are on the device; a tensor on "meta" has none, so that reading one raises."""
    import torch
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    labels = torch.zeros(1, 24, dtype=torch.int64, device="meta")  # two packed sequences
    bounds = torch.tensor([0, 10, 24], dtype=torch.int32, device="meta")
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds)
    rolled, _ = roll_tensor(labels, shifts=-1, dims=-1, packed_seq_params=packed)
    print("no value was read:", rolled.shape)


MTP = "megatron.core.transformer.multi_token_prediction"
FEW, MANY = 4, 64  # sequences
# from, below: whole numbers, so that sums of a thousand are exact, in int64 too big for any float; 0 only where it must
# be one of two
KINDS = {torch.int64: (1, 2**55), torch.float32: (1, 2**14), torch.bool: (0, 2)}
ALONE = SimpleNamespace(size=lambda: 1, rank=lambda: 0)  # all that is asked of a context parallel group
# (lengths, tokens, dimensions before the tokens): empty sequences first, within and last, as those that pad cu_seqlens;
# tokens after the last sequence; bounds beyond the tokens
LAYOUTS: list[tuple[list[int], int, tuple[int, ...]]] = [
    ([9], 9, (1,)),
    ([1, 5, 12, 1, 21], 40, (1,)),
    ([1, 5, 12, 1, 21], 40, ()),
    ([0, 0, 6, 0, 7, 0, 0], 13, (2,)),
    ([3, 0, 4, 1], 12, (2, 3)),
    ([4, 4], 20, (1,)),
    ([0, 0], 5, (1,)),
    ([5, 9, 6], 11, (1,)),
    ([1, 1, 1], 3, (2,)),
]


class Input:
    """Values [*lead, tokens], and the packed sequences' parameters; seeded."""

    def __init__(
        self,
        p: probe.Probe,
        lengths: list[int],
        tokens: int,
        lead: tuple[int, ...] = (1,),
        dtype: torch.dtype = torch.int64,
        *,
        seed: int = 0,
        bounds: torch.dtype = torch.int32,
    ) -> None:
        generator, device = torch.Generator().manual_seed(p.seed + seed), torch.cuda.current_device()
        self.tensor = torch.randint(*KINDS[dtype], (*lead, tokens), generator=generator).to(device, dtype)
        self.cu = torch.tensor([0, *itertools.accumulate(lengths)], dtype=bounds).to(device)
        params = p.upstream("megatron.core.packed_seq_params").PackedSeqParams
        self.packed = params(qkv_format="thd", cu_seqlens_q=self.cu, cu_seqlens_kv=self.cu)
        self.roll = p.upstream(MTP).roll_tensor

    def rolled(self, **options: Any) -> tuple[Tensor, Tensor]:
        """Upstream's result and its sum."""
        return self.roll(self.tensor, packed_seq_params=self.packed, **{"shifts": -1, "dims": -1, **options})


def exact(given: Tensor, lengths: list[int]) -> list[list[Any]]:
    """Rows of what it should be, token by token: the next one of the sequence, or zero; after the last one as given."""
    rows: list[list[Any]] = given.reshape(-1, given.shape[-1]).tolist()
    for row in rows:
        start, zero = 0, type(row[0])(0)
        for length in lengths:
            end = min(start + length, len(row))
            row[start:end] = [*row[start + 1 : end], *([zero] if end > start else [])]
            start = end
    return rows


def wrong(found: Tensor, given: Tensor, lengths: list[int]) -> int:
    """Elements that are not what they should be, by their text: NaN is NaN, and -0.0 is not 0.0."""
    pairs = zip(found.flatten().tolist(), itertools.chain(*exact(given, lengths)), strict=True)
    return sum(repr(a) != repr(b) for a, b in pairs)


def faults(given: Input, lengths: list[int], **options: Any) -> tuple[int, tuple[Tensor, Tensor]]:
    """What is wrong in a call: elements, dtype, shape, sum, or an input that changed; and the call's values."""
    before, bounds = given.tensor.clone(), given.cu.clone()
    made, total = given.rolled(**options)
    off = total.item() - sum(map(sum, exact(before, lengths)))
    bad = wrong(made, before, lengths) + (off % 2**64 != 0)  # int64 sums as all integers of 64 bits
    bad += (made.dtype, made.shape) != (before.dtype, before.shape)
    bad += not (torch.equal(given.tensor, before) and torch.equal(given.cu, bounds))
    return bad, (made, total)


def check_values(p: probe.Probe) -> None:
    """All layouts, dtypes of values and of bounds: each element, dtype, shape, sum, and the input untouched."""
    for dtype in KINDS:
        name, bad, kept = str(dtype).removeprefix("torch."), 0, list[Tensor]()
        for (lengths, tokens, lead), bounds in itertools.product(LAYOUTS, (torch.int32, torch.int64)):
            given = Input(p, lengths, tokens, lead, dtype, seed=tokens, bounds=bounds)
            for options in ({}, {"cp_group": ALONE, "dims": given.tensor.dim() - 1}):
                more, made = faults(given, lengths, **options)
                bad, kept = bad + more, [*kept, *made]
        p.guard(f"wrong elements, {name}", bad, 0, reference="token by token in Python")
        p.digest(f"{name}: tensors and sums", *kept)


def check_drawn(p: probe.Probe) -> None:
    """Lengths, shapes and dtypes that nobody can foresee, each with a second batch in the same tensors."""
    from hypothesis import strategies as st

    kept = list[Tensor]()

    def measure(
        lengths: list[int],
        beyond: int,
        lead: list[int],
        dtype: torch.dtype,
        bounds: torch.dtype,
        host: bool,
        strided: bool,
        alone: bool,
    ) -> float:
        tokens = max(1, sum(lengths) + beyond)  # after the last sequence, or fewer than the bounds say
        given = Input(p, lengths, tokens * (1 + strided), tuple(lead), dtype, bounds=bounds)
        given.tensor = given.tensor[..., :: 1 + strided]
        if host:  # they may be anywhere
            given.packed.cu_seqlens_q = given.cu = given.cu.cpu()
        options = {"cp_group": ALONE, "dims": given.tensor.dim() - 1} if alone else {}
        first, made = faults(given, lengths, **options)
        given.cu.data.copy_(torch.tensor([0, *itertools.accumulate(lengths[::-1])]))  # the version stays as it was
        second, again = faults(given, lengths[::-1], **options)
        kept.extend(torch.empty(t.shape, dtype=t.dtype).copy_(t) for t in (*made, *again))  # strides are not compared
        return first + second

    space = {
        "lengths": st.lists(st.integers(0, 5), max_size=24),
        "beyond": st.integers(-6, 6),
        "lead": st.lists(st.integers(1, 2), max_size=3),
        "dtype": st.sampled_from(list(KINDS)),
        "bounds": st.sampled_from([torch.int32, torch.int64]),
        "host": st.booleans(),
        "strided": st.booleans(),
        "alone": st.booleans(),
    }
    p.drawn("wrong elements, drawn", measure, 0, space=space, count=60, reference="token by token in Python")
    p.digest("drawn: tensors and sums", *kept)


def check_long(p: probe.Probe) -> None:
    """Positions beyond 2^24, which fp32 does not tell apart, in sequences and after them: ends alone become zero."""
    ends = [2**24 + 1, 2**24 + 4]
    given = Input(p, [ends[0], ends[1] - ends[0]], ends[1] + 6, dtype=torch.bool)
    given.tensor.fill_(True)
    true = given.tensor.clone()
    true[..., [end - 1 for end in ends]] = False
    p.guard("wrong elements, 2^24 + 10 tokens", int((given.rolled()[0] != true).sum()), 0, reference="ends by hand")


def check_floats(p: probe.Probe) -> None:
    """Values that no product with a mask would keep or zero, a view with strides, and the gradient."""
    lengths, tokens = [3, 0, 4, 2], 12
    given = Input(p, lengths, tokens, (2,), torch.float32)
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1.5, -2.0], device=given.tensor.device)
    wide = odd.repeat(2, 2, 2)  # [2, 2, 12]
    given.tensor = wide[:, 1]
    made = given.rolled()[0]
    p.guard(
        "wrong elements, NaN, infinities and signed zeros",
        wrong(made, given.tensor, lengths),
        0,
        reference="token by token in Python",
    )
    leaf = torch.arange(1.0, 1 + 2 * tokens, device=odd.device).view(2, tokens).requires_grad_()
    weight = torch.arange(100.0, 100 + 2 * tokens, device=odd.device).view(2, tokens)
    given.tensor = leaf
    (back,) = torch.autograd.grad((given.rolled()[0] * weight).sum(), leaf)
    true = torch.zeros_like(weight)
    sources = exact(torch.arange(1, tokens + 1), lengths)  # place, from 1, that each position's value is from; 0: none
    for position, source in enumerate(sources[0]):
        if source:
            true[:, source - 1] += weight[:, position]
    p.guard("wrong elements of the gradient", int((back != true).sum()), 0, reference="position by position in Python")
    p.digest("NaN, infinities and signed zeros; a gradient", made, back)


def check_growth(p: probe.Probe) -> int:
    """The same tokens in FEW and in MANY sequences, and padded by empty ones. Returns how many waits were seen."""
    tokens, none = 4096, "none needed: the host knows all shapes"
    layouts = {f"sequences: {n}": [tokens // n] * n for n in (1, FEW, MANY)}
    layouts[f"sequences: {FEW}, empty ones: {MANY - FEW}"] = [tokens // FEW] * FEW + [0] * (MANY - FEW)
    operators, waits, bad = [], [], 0
    for what, lengths in layouts.items():
        given = Input(p, lengths, tokens)
        bad += faults(given, lengths)[0]
        operators.append(p.operators(given.rolled).count)
        waits.append(p.waits(given.rolled))
        p.note(f"operators dispatched in a call, {what}", operators[-1])
        p.note(f"waits in a call, {what}", waits[-1].total())
    # a call that does less than its work has no operators and waits either
    p.guard("wrong elements where operators and waits are counted", bad, 0, reference="token by token in Python")
    p.note(f"places of these waits, sequences: {MANY}", str(waits[2]))
    # four of each: two bounds a sequence, in two slices
    p.error(f"waits of {FEW} sequences, a sequence", waits[1].total() / FEW, 0, reference=none, bug_above=4)
    for i, name in ((2, "sequence"), (3, "empty sequence")):
        more = (waits[i].total() - waits[1].total()) / (MANY - FEW)
        p.error(f"waits for each further {name}", more, 0, reference=none, bug_above=4)
        p.error(
            f"operators for each further {name}",
            (operators[i] - operators[1]) / (MANY - FEW),
            0,
            bug_above=8,
            reference="each token's next one is found alike",
        )
    return sum(places.total() for places in waits)


def check_without_values(p: probe.Probe) -> None:
    """A tensor on "meta" has a shape and no values: what no count has seen raises there, or ends the process."""
    given = Input(p, [3, 0, 4], 9)
    given.tensor = given.tensor.to("meta")
    given.packed.cu_seqlens_q = given.cu.to("meta")
    p.attempt(
        "tensors without values",
        given.rolled,
        probe.Signature("RuntimeError", "meta tensor", MTP.replace(".", "/") + ".py"),
    )


def check_refused(p: probe.Probe) -> None:
    """What packed sequences cannot be asked for is refused by the same errors."""
    said = []
    for what, options in (("shift to the right", {"shifts": 1}), ("other axis", {"dims": 0}), ("no bounds", {})):
        given = Input(p, [3, 4], 7, (2,))
        if what == "no bounds":
            given.packed.cu_seqlens_q = None
        try:
            given.rolled(**options)
            said.append(f"{what}: taken")
        except Exception as error:
            said.append(f"{what}: {type(error).__name__}")
    p.note("requests", "; ".join(said))
    p.digest("requests: what is taken and refused", "; ".join(said).encode())


def check_times(p: probe.Probe) -> None:
    """A call at the size of a micro-batch's labels."""
    tokens, took = 16384, {}
    for count in (1, FEW, MANY):
        given = Input(p, [tokens // count] * count, tokens)
        took[count] = p.milliseconds(given.rolled, repeats=30, warm=4)
        p.note(f"a call, T {tokens}, sequences: {count}", took[count], unit="ms")
    p.error(
        f"time of {MANY} sequences over that of {FEW}",
        took[MANY] / took[FEW],
        3,
        # the same kernels, each so short that launching them is what is timed: up to 2.02 on a busy host; one by one
        # sixteen times as many
        reference="each token's next one is found alike",
        bug_above=6,
    )


def check_capture(p: probe.Probe) -> None:
    """Capture, then replay on other tokens and lengths; a failed capture leaves the process unfit: this comes last."""
    lengths = [17, 290, 0, 93, 0]
    static, new = Input(p, [200, 1, 0, 255, 44], 500), Input(p, lengths, 500, seed=1)
    signature = probe.Signature("RuntimeError", "(?i)captur", MTP.replace(".", "/") + ".py")
    done = p.attempt("capture in a CUDA graph", partial(p.graph, static.rolled), signature)
    if done is None:
        return
    graph, (made, total) = done
    static.tensor.copy_(new.tensor)
    static.cu.copy_(new.cu)
    made.fill_(-1)
    total.fill_(-1)
    graph.replay()
    torch.cuda.synchronize()
    off = wrong(made, new.tensor, lengths) + (total.item() != sum(exact(new.tensor, lengths)[0]))
    p.error("wrong elements of a replay, other lengths", off, 0, reference="token by token in Python", bug_above=1)


def shared_out(rows: Tensor, lengths: list[int], rank: int) -> Tensor:
    """A rank's part of two: of each sequence's four quarters the first and last, or those between."""
    quarters = [one.chunk(4, -1) for one in rows.split(lengths, -1)]
    return torch.cat([part for four in quarters for part in (four[rank], four[3 - rank])], -1)


def check_ranks(p: probe.Probe) -> None:
    """Two ranks of context parallelism, which the claim leaves as it is: each has its part of what one would have."""

    def work(rank: int) -> None:
        p.megatron_cpu()
        lengths, group = [4, 12, 8, 4], torch.distributed.group.WORLD
        given = Input(p, lengths, sum(lengths), (2,))
        want = torch.tensor(exact(given.tensor, lengths))
        given.tensor = shared_out(given.tensor, lengths, rank)
        made, total = given.rolled(cp_group=group)
        mine = shared_out(want, lengths, rank)
        bad = int((made != mine).sum()) + (total.item() != mine.sum().item())
        p.guard(f"rank {rank} of 2: wrong elements", bad, 0, reference="its part of the whole stream's roll")

    p.ranks(2, work)


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        check_ranks(p)
    else:
        p.skip("two ranks", "two GPUs; the cpu lane has them")
    p.megatron_cpu()
    check_values(p)
    check_drawn(p)
    check_long(p)
    check_floats(p)
    if not check_growth(p):
        check_without_values(p)
    check_refused(p)
    if p.lane == "cuda":
        check_times(p)
        check_capture(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=35, package="megatron", minimal=minimal, prepare=lambda p: p.megatron_cpu())
