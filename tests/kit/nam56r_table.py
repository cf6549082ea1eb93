"""Errors planted in NAM56R's network, and what the table of ``model.align`` then says; for a worker only."""

import functools

import torch
from planted_source import planted

from model.families.nam56r import SIZES, Size
from model.kinds import catalogue
from model.kinds.run import Run

FELT, SEED, TOKENS, TOPK = 1, 0, 14, 8  # a draw whose constants are felt; documents longer than the choice of keys
EXACT = {}


def sized(name="nam56r_tiny", changed=()):
    """A size with a small choice of keys, and other values of its fields, ((("attention", "rope_base"), 3), …)."""
    told = SIZES[name].model_dump()
    for (*folders, last), value in ((("indexer", "topk"), TOPK), *changed):
        at = told
        for folder in folders:
            at = at[folder]
        at[last] = value
    return Size.model_validate(told)


def once(exact):
    """What the formulas give, of which an error in the network changes nothing: once for each draw."""

    @functools.wraps(exact)
    def found(size, floor, kept, row, taken):
        key = size.model_dump_json(), floor, tuple(row.tokens.tolist()), tuple(row.cu.tolist())
        if key not in EXACT:
            EXACT[key] = exact(size, floor, kept, row, taken)
        return EXACT[key]

    return found


def table(edits=(), size="nam56r_tiny", changed=(), variant=FELT, seed=SEED):
    """(layer, module, kind) of the first row that does not hold, None where all do; the verdict's text; the rows that
    were not compared; and those with ties."""
    torch.set_num_threads(1)
    from model.alignment import aligned
    from model.alignment import table as tables
    from model.alignment.nam56r import drawn
    from model.exported import ngram

    for kept in (ngram.hash_constants, ngram._on):
        kept.cache_clear()  # what was computed of the source as it is
    run = Run(bf16=False, on_cpu=True)
    if not hasattr(drawn.exact, "__wrapped__"):
        drawn.exact = once(drawn.exact)
    made = drawn.Drawn(sized(size, changed), TOKENS)
    made.variants = 1
    chosen = catalogue.choose(made.size, run)
    with planted(edits):
        found = aligned.drawn(
            made, size, "formulas", seed, 1, TOKENS, lambda _, at: made.rows(variant, at, run, chosen)
        )
    first = found.first
    place = first and (first.layer, first.module, first.kind)
    missing = [row.module for row in found.rows if not row.draws]
    return place, tables.verdict(found), missing, [row.module for row in found.rows if row.ties]
