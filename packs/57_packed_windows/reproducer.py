# /// script
# requires-python = ">=3.11.0"
# dependencies = ["transformers==5.24.0", "torch>=2.8", "numpy", "hypothesis"]
# ///
"""DeepSeek-V4's compressors cut a row into windows as if it were one document.

Whoever packs rows gives positions that restart, and without a cache the sliding window keeps to each document. The
compressors of CSA and HCA go on counting from the row's first token, whatever belongs to it: a later document, padding
on the left, or a document that began in the row before. Which windows a token sees is then decided by its position. So
windows hold tokens of two documents, a document sees windows of another, and one that is continued sees its future.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """Two documents in a row, against the second alone."""
    import torch
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "head_dim": 64, "q_lora_rank": 64, "index_n_heads": 8}
    counts = {"num_hidden_layers": 1, "n_routed_experts": 8, "vocab_size": 99, "sliding_window": 8}
    kinds = {"layer_types": ["compressed_sparse_attention"], "mlp_layer_types": ["moe"]}
    config = DeepseekV4Config(**sizes, **counts, **kinds, initializer_range=0.3)
    model, tokens = DeepseekV4ForCausalLM(config), torch.randint(99, (1, 24))
    positions = torch.cat([torch.arange(10), torch.arange(14)])[None]
    packed = model(tokens, position_ids=positions, use_cache=False).logits[:, 10:]
    alone = model(tokens[:, 10:], use_cache=False).logits
    torch.testing.assert_close(packed, alone, rtol=1e-3, atol=1e-3)


WORDS = 50
# fp32: a few dozen roundings of 6e-8 between a token and its logits, in sums of some dozen terms whose order depends on
# the row's length; norms and softmaxes make them a few times as large, gradients once more. Measured: up to 2e-5.
FP32 = 1e-4
DRAWN = 1e-3  # gradients of a document of a few tokens are differences
# weights, activations and gradients are rounded by 2**-9 at most, a dozen times in a row
BF16 = 2.0**-4
BUG = 0.15  # an entry of other tokens than it should be is off by its own size
HERE = "transformers.models.deepseek_v4"
KINDS = {
    "sliding": "sliding_attention",
    "CSA": "compressed_sparse_attention",
    "HCA": "heavily_compressed_attention",
}


@functools.cache
def upstream(p: probe.Probe, name: str) -> Any:
    """Modules are checked when they are imported, not in each of many calls."""
    return p.upstream(f"{HERE}.{name}_deepseek_v4")


@dataclass(frozen=True)
class Shape:
    """Layers by their kinds, tokens in a window of each, and what a query sees."""

    kinds: tuple[str, ...]
    csa: int = 4
    hca: int = 6
    topk: int = 2
    window: int = 5


class Passed(NamedTuple):
    """Logits [B, S, V], and the gradients of a sum of them by parameter, None of those that have none."""

    logits: Tensor
    gradients: dict[str, Tensor | None]


class Model:
    """A small model in fp32, seeded. Its indexer has so many heads that no two scores tie, and routers leave no choice.

    ``source``: with the classes of the file from which upstream generates the one that is imported.
    """

    def __init__(self, p: probe.Probe, shape: Shape, *, source: bool = False, seed: int = 0) -> None:
        torch.manual_seed(p.seed + seed)
        config = upstream(p, "configuration").DeepseekV4Config(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=len(shape.kinds),
            num_attention_heads=2,
            head_dim=16,
            qk_rope_head_dim=8,
            q_lora_rank=16,
            o_groups=2,
            o_lora_rank=8,
            sliding_window=shape.window,
            layer_types=[KINDS[kind] for kind in shape.kinds],
            compress_rates={KINDS["CSA"]: shape.csa, KINDS["HCA"]: shape.hca},
            index_n_heads=32,
            index_head_dim=8,
            index_topk=shape.topk,
            n_routed_experts=2,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            mlp_layer_types=["moe"] * len(shape.kinds),
            hc_mult=2,
            hc_sinkhorn_iters=3,
            max_position_embeddings=512,
            pad_token_id=None,
            eos_token_id=None,
        )
        self.model = upstream(p, "modeling").DeepseekV4ForCausalLM(config).train()
        self.model.set_experts_implementation("eager")
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(0.3 * torch.randn(weight.shape) + 0.5 * (weight.ndim == 1))
        if source:
            for module in self.model.modules():
                module.__class__ = vars(upstream(p, "modular")).get(type(module).__name__, type(module))

    def logits(self, tokens: Tensor, **given: Any) -> Tensor:
        """Of tokens [B, S] without a cache."""
        out: Tensor = self.model(tokens, use_cache=False, **given).logits
        return out

    def passed(self, tokens: Tensor, counts: Tensor, **given: Any) -> Passed:
        """``counts`` [B, S]: which tokens are in the sum, each of whose logits has a weight of its own."""
        self.model.zero_grad(set_to_none=True)
        logits = self.logits(tokens, **given)
        weights = torch.linspace(-1, 2, WORDS, dtype=logits.dtype)
        (logits[counts] @ weights * (1 + tokens[counts] % 7)).sum().backward()
        return Passed(logits.detach(), {name: weight.grad for name, weight in self.model.named_parameters()})


class Rows(NamedTuple):
    """Documents in rows: tokens, positions and place [B, S]; place -1 is of no document, else a token's among all."""

    tokens: Tensor
    positions: Tensor
    place: Tensor

    @property
    def mask(self) -> Tensor:
        return self.place >= 0


def documents(p: probe.Probe, lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Random tokens, one tensor a document."""
    generator = torch.Generator().manual_seed(p.seed + seed)
    return [torch.randint(WORDS, (length,), generator=generator) for length in lengths]


def row(docs: Sequence[Tensor], order: Sequence[int], *, left: int = 0, right: int = 0, start: int = 0) -> Rows:
    """One row of these documents, padded on both sides; the first document's positions begin at ``start``."""
    bounds = [0, *itertools.accumulate(map(len, docs))]
    parts = [Rows(docs[i], torch.arange(len(docs[i])), torch.arange(bounds[i], bounds[i + 1])) for i in order]
    parts[0] = parts[0]._replace(positions=parts[0].positions + start)
    before, after = (
        Rows(torch.full((count,), 7), torch.zeros(count).long(), torch.full((count,), -1)) for count in (left, right)
    )
    return Rows(*(torch.cat(tensors)[None] for tensors in zip(before, *parts, after, strict=True)))


def stacked(rows: Sequence[Rows]) -> Rows:
    return Rows(*(torch.cat(tensors) for tensors in zip(*rows, strict=True)))


def alone(model: Model, docs: Sequence[Tensor]) -> Passed:
    """Each document by itself: logits [tokens, V] of all, and gradients added up."""
    logits, gradients = [], dict[str, Tensor | None]()
    for tokens in docs:
        found = model.passed(tokens[None], torch.ones(1, len(tokens), dtype=torch.bool))
        logits.append(found.logits[0])
        for name, gradient in found.gradients.items():
            kept = gradients.get(name)
            gradients[name] = kept if gradient is None else gradient if kept is None else kept + gradient
    return Passed(torch.cat(logits), gradients)


def far(found: Tensor, true: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((found.double() - true.double()).abs().max() / true.double().abs().max())


def off(found: Passed, true: Passed, rows: Rows, times: int) -> tuple[float, float]:
    """How far logits and gradients are from those of each document alone; inf where other parameters have gradients.

    ``times``: how often each document is in the gradients. One is relative to its largest number, or to a hundredth of
    the largest of all where that is more.
    """
    least = max(float(gradient.abs().max()) for gradient in true.gradients.values() if gradient is not None) / 100
    gradients = 0.0
    for name, due in true.gradients.items():
        mine = found.gradients[name]
        if (mine is None) != (due is None):
            return float("inf"), float("inf")
        if mine is not None and due is not None:
            scale = max(float(due.abs().max()), least)
            gradients = max(gradients, float((mine / times - due).abs().max()) / scale)
    return far(found.logits[rows.mask], true.logits[rows.place[rows.mask]]), gradients


def compared(model: Model, true: Passed, rows: Rows, **given: Any) -> tuple[float, float]:
    """Logits and gradients of rows beside those of each document alone; inf where what is given is changed."""
    held = [tensor for tensor in (rows.tokens, *given.values()) if isinstance(tensor, Tensor)]
    before = [tensor.clone() for tensor in held]
    found = model.passed(rows.tokens, rows.mask, **given)
    if not all(map(torch.equal, held, before)):
        return float("inf"), float("inf")
    return off(found, true, rows, int(rows.mask.sum()) // len(true.logits))


LENGTHS = [9, 1, 14, 4, 12]
REFERENCE = "each document alone"


def layouts(docs: Sequence[Tensor]) -> dict[str, tuple[Rows, dict[str, Any]]]:
    """Ways in which documents come without a cache: rows, and what is given beside tokens."""
    order = range(len(docs))
    packed = stacked([row(docs, order), row(docs, order[::-1])])
    alike = stacked([row(docs, order), row(docs, order)])
    cut = row(docs, order, start=3)
    left = stacked([row(docs, [i], left=max(LENGTHS) + 2 - length) for i, length in enumerate(LENGTHS)])
    ones = left.positions.masked_fill(~left.mask, 1)
    both = stacked([row(docs, [i], left=3, right=max(LENGTHS) - length) for i, length in enumerate(LENGTHS)])
    return {
        "packed": (packed, {"position_ids": packed.positions}),
        "packed, one row of positions": (alike, {"position_ids": alike.positions[:1]}),
        "packed, cut document": (cut, {"position_ids": cut.positions}),
        "packed, mask of four dimensions": (packed, {"position_ids": packed.positions, "attention_mask": bias(packed)}),
        "padded on the left": (left, {"attention_mask": left.mask.long()}),
        "padded on the left, with positions": (
            left,
            {"attention_mask": left.mask.float(), "position_ids": left.positions},
        ),
        "padded on the left, positions of 1": (left, {"attention_mask": left.mask, "position_ids": ones}),
        "padded on both sides": (both, {"attention_mask": both.mask.long()}),
    }


def bias(rows: Rows) -> Tensor:
    """The mask that transformers makes of positions, [B, 1, S, S], made by hand."""
    index = torch.arange(rows.tokens.shape[1])
    first = index - rows.positions  # the same for all of a document, whose positions begin at 0
    near = (index[:, None] >= index) & (index[:, None] - index < Shape.window)
    seen = near & (first[:, :, None] == first[:, None, :])
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]


def check_layouts(p: probe.Probe) -> None:
    """Each layout, in a layer of each kind, by the file that is imported and by the one that it is generated from."""
    docs = documents(p, LENGTHS)
    for kind in ("CSA", "HCA"):
        models = [Model(p, Shape((kind,)), source=source) for source in (False, True)]
        true = [alone(model, docs) for model in models]
        for name, (rows, given) in layouts(docs).items():
            found = [compared(*pair, rows, **given) for pair in zip(models, true, strict=True)]
            for what, measured in zip(("logits", "gradients"), zip(*found, strict=True), strict=True):
                p.error(f"{kind}, {name}: {what}", max(measured), FP32, reference=REFERENCE, bug_above=BUG)


def check_options(p: probe.Probe) -> None:
    """Recomputation of two batches that overlap, bf16, embeddings in place of tokens, and a document that goes on."""
    docs = documents(p, LENGTHS)
    rows, given = layouts(docs)["packed"]
    other = stacked([row(docs, [2, 0, 4, 1, 3]), row(docs, [1, 3, 0, 2, 4])])

    def bug(name: str, measured: float, limit: float = FP32) -> None:
        p.error(name, measured, limit, reference=REFERENCE, bug_above=BUG)

    for source in (False, True):
        title = "source" if source else "module"
        model = Model(p, Shape(("CSA", "HCA")), source=source)
        true = alone(model, docs)
        model.model.gradient_checkpointing_enable()
        model.model.zero_grad(set_to_none=True)
        weights = torch.linspace(-1, 2, WORDS)
        outs = [model.logits(batch.tokens, position_ids=batch.positions) for batch in (rows, other)]
        for batch, out in zip((rows, other), outs, strict=True):
            (out[batch.mask] @ weights * (1 + batch.tokens[batch.mask] % 7)).sum().backward()
        found = Passed(outs[0].detach(), {name: weight.grad for name, weight in model.model.named_parameters()})
        worst = off(found, true, rows, times=4)  # each document is twice in either batch
        bug(
            f"{title}: two batches, recomputed",
            max(*worst, far(outs[1].detach()[other.mask], true.logits[other.place[other.mask]])),
        )
        half = Model(p, Shape(("CSA", "HCA"), topk=99), source=source)
        half.model.bfloat16()
        bug(f"{title}: bf16", compared(half, alone(half, docs), rows, **given)[0], BF16)
        model = Model(p, Shape(("CSA", "HCA")), source=source)
        embedded = model.model.get_input_embeddings()(rows.tokens)
        out = model.model(inputs_embeds=embedded, use_cache=False, **given).logits.detach()
        bug(f"{title}: embeddings", far(out[rows.mask], true.logits[rows.place[rows.mask]]))
        (first,) = documents(p, [40], seed=1)
        on = row([first], [0], start=5)
        bug(
            f"{title}: a document that goes on",
            max(compared(model, alone(model, [first]), on, position_ids=on.positions)),
        )
    generated(p)


def generated(p: probe.Probe) -> None:
    """Text by the whole prompt again for each token, from prompts padded on the left."""
    model = Model(p, Shape(("CSA", "HCA")))
    prompts = documents(p, [9, 6, 12], seed=2)
    rows = stacked([row(prompts, [i], left=12 - len(prompt)) for i, prompt in enumerate(prompts)])
    options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    model.model.eval()

    def made(tokens: Tensor, mask: Tensor) -> Any:
        return model.model.generate(tokens, attention_mask=mask, use_cache=False, pad_token_id=0, **options)

    together, worst = made(rows.tokens, rows.mask.long()), 0.0
    for i, prompt in enumerate(prompts):
        one = made(prompt[None], torch.ones(1, len(prompt), dtype=torch.long))
        worst = max(worst, far(torch.stack(together.logits)[:, i], torch.stack(one.logits)[:, 0]))
    p.error("generate without a cache, prompts padded", worst, FP32, reference="each prompt alone", bug_above=BUG)


def check_drawn(p: probe.Probe) -> None:
    """Lengths, windows and ways to give them that nobody can foresee."""
    from hypothesis import strategies as st

    def measure(
        lengths: list[int],
        kinds: list[str],
        sizes: list[int],
        padded: bool,
        counted: bool,
        mask: torch.dtype,
        positions: torch.dtype,
        start: int,
        source: bool,
        seed: int,
    ) -> float:
        csa, hca, topk, window = sizes
        model = Model(p, Shape(tuple(kinds), csa, hca, topk, window), source=source, seed=seed)
        docs, order = documents(p, lengths, seed), range(len(lengths))
        given: dict[str, Any] = {}
        if padded:
            room = max(lengths) + seed % 3
            rows = stacked([row(docs, [i], left=room - length) for i, length in enumerate(lengths)])
            given["attention_mask"] = rows.mask.to(mask)
        else:
            rows = stacked([row(docs, order, start=start), row(docs, order[::-1], start=start)])
        if counted or not padded:
            given["position_ids"] = rows.positions.to(positions)
        return max(compared(model, alone(model, docs), rows, **given))

    space = {
        "lengths": st.lists(st.integers(1, 20), min_size=1, max_size=5),
        "kinds": st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3),
        "sizes": st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 6), st.integers(1, 8)),
        "padded": st.booleans(),
        "counted": st.booleans(),
        "mask": st.sampled_from([torch.int64, torch.bool, torch.float32]),
        "positions": st.sampled_from([torch.int64, torch.int32]),
        "start": st.integers(0, 9),
        "source": st.booleans(),
        "seed": st.integers(0, 999),
    }
    p.drawn(
        "drawn: logits and gradients",
        measure,
        DRAWN,
        space=space,
        count=16,
        reference=REFERENCE,
        bug_above=BUG,
    )


def check_neighbours(p: probe.Probe) -> None:
    """What holds in both arms: layers without a compressor, padding on the right; and bit by bit one document."""
    docs = documents(p, LENGTHS)
    rows, given = layouts(docs)["packed"]
    sliding = Model(p, Shape(("sliding", "sliding")))
    found = max(compared(sliding, alone(sliding, docs), rows, **given))
    p.guard("sliding window, packed", found, FP32, reference=REFERENCE)
    right = stacked([row(docs, [i], right=max(LENGTHS) - length) for i, length in enumerate(LENGTHS)])
    for source in (False, True):
        title = "source" if source else "module"
        model = Model(p, Shape(("CSA", "HCA", "sliding")), source=source)
        found = max(compared(model, alone(model, docs), right, attention_mask=right.mask.long()))
        p.guard(f"{title}: padded on the right", found, FP32, reference=REFERENCE)
        (first,) = documents(p, [40], seed=1)
        tokens, every = first[None], torch.ones(1, 40, dtype=torch.bool)
        kept, plain = list[Tensor](), model.passed(tokens, every)
        for more in ({}, {"attention_mask": every.long()}, {"position_ids": torch.arange(40)[None]}):
            one = model.passed(tokens, every, **more)
            kept += [one.logits, *(g for g in one.gradients.values() if g is not None)]
        for name, steps in (("at once", [40]), ("in steps", [13, 1, 1, 1, 6, 1, 17])):
            attempt = functools.partial(cached, p, model, tokens, steps)
            logits = p.guard_attempt(f"{title}: one document with a cache, {name}", attempt)
            if logits is not None:
                kept.append(logits)
                measured = far(logits, plain.logits)
                p.guard(f"{title}: logits with a cache, {name}", measured, FP32, reference="without a cache")
        p.digest(f"{title}: one document", *kept)
        holes = torch.ones_like(tokens)
        holes[:, [7, 20, 21]] = 0
        p.digest(f"{title}: a mask with holes", model.passed(tokens, every, attention_mask=holes).logits)
        before = torch.cat([torch.full((1, 5), 7), tokens], dim=1)
        left = (torch.arange(45) >= 5).long()[None]
        p.digest(f"{title}: padded on the left, with a cache", cached(p, model, before, [20, 1, 1, 10, 13], left))


@torch.no_grad()
def cached(p: probe.Probe, model: Model, tokens: Tensor, steps: Sequence[int], mask: Tensor | None = None) -> Tensor:
    """Logits of one row [1, S], so many tokens at a time, with a mask [1, S] of those that count."""
    cache = p.upstream("transformers.cache_utils").DynamicCache(config=model.model.config)
    ends = list(itertools.accumulate(steps))
    parts = zip(
        tokens.split(list(steps), dim=1), (None if mask is None else mask[:, :end] for end in ends), strict=True
    )
    # the cache's name is another from release to release, its place is not
    return torch.cat([model.model(part, given, None, cache, use_cache=True).logits for part, given in parts], dim=1)


def reproduce(p: probe.Probe) -> None:
    torch.set_num_threads(1)  # tensors are small
    check_layouts(p)
    check_options(p)
    check_drawn(p)
    check_neighbours(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=57, package="transformers", minimal=minimal)
