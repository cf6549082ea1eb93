"""What is loaded from a checkpoint is what was saved in it, whatever the layout of either (pack 37)."""

from __future__ import annotations

from collections import defaultdict

import torch.distributed as dist

from model.invariants.invariant import Broken, some
from model.invariants.view import View, digests, without_expert

Held = dict[str, dict[str, int]]
REMEDY = "train with --patches all, which has pack 37, or resume an earlier checkpoint: move this one's folder aside"


def held(view: View) -> Held:
    """{parameter, a layer's experts as one: {"master" or a moment's name: digest}} over all ranks, each of which has a
    part; all ranks call it. The embedding is left out where two stages have it."""
    shares = [share for share in view.shares if not (view.stages > 1 and share.name.startswith("embedding."))]
    own = digests(
        (f"{number} {what}", values)
        for number, share in enumerate(shares)
        for what, values in {"master": share.master, **share.moments}.items()
    )
    mine: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, value in own.items():
        number, _, what = key.partition(" ")
        mine[without_expert(shares[int(number)].name)][what] += value
    every: list[Held] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, {name: dict(parts) for name, parts in mine.items()})
    whole: Held = {}
    for of_rank in every:
        for name, parts in of_rank.items():
            known = whole.setdefault(name, {})
            for what, value in parts.items():
                known[what] = known.get(what, 0) + value
    return whole


def compare(saved: Held, view: View, checkpoint: str) -> None:
    """Raise Broken where a master or a moment that was loaded is not what ``saved`` says; all ranks call it."""
    now = held(view)
    odd = [
        f"{what} of {name}"
        for name, parts in saved.items()
        for what, value in parts.items()
        if name in now and now[name].get(what) != value
    ]
    if odd:
        raise Broken(f"{checkpoint}: resumed: {some(odd)} is not what was saved", REMEDY)
