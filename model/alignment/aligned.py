"""A size beside a reference: upstream's code on the path, Megatron on this one process, some draws, one table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from model.alignment.comparison import Row, merged
from model.alignment.draw import Draw
from model.alignment.table import Alignment
from model.definition import parameters
from model.families.family import Family
from model.families.sizes import SIZES, named
from model.kinds import catalogue
from model.kinds.path import Choice, called
from model.kinds.run import Run
from model.loop import launch, refusals, run_record, session
from model.patched import lock, overlay, seams
from model.patched.stacks import Stack
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.upstream.store import Store

TRIES = 25  # seeds for a draw without a tie, of which one in three to six of v4_tiny is
LARGEST = 5_000_000  # parameters: a recomputation in fp64 goes token by token
OFFERED = tuple(name for name, size in SIZES.items() if parameters.total(size) <= LARGEST)
OTHER = f"python -m model.align SIZE, SIZE one of: {', '.join(OFFERED)}"


def reference(size: Family, against: str, tokens: int) -> Draw:
    """What makes the draws. Raises PatchlaneError where the size cannot be aligned with that."""
    if against not in size.references:
        offered = " or ".join(size.references)
        raise PatchlaneError(f"{size.name} is not aligned with {against!r}", f"--against {offered}")
    if (count := parameters.total(size)) > LARGEST:
        raise PatchlaneError(f"{size.name} has {count:,} parameters, more than the {LARGEST:,} of a comparison", OTHER)
    made: Draw = called(size.references[against])(size, tokens)
    return made


def align(
    name: str, against: str | None, of: Stack, clone: Path | None, seed: int, draws: int, tokens: int
) -> Alignment:
    """``draws`` draws of each variant, of ``seed`` and the numbers after it; in fp32 on a CPU. ``against``: the size's
    first reference for None.

    Call once per process: Megatron's groups cannot be created twice. Raises PatchlaneError for a size or reference that
    cannot be compared, CannotTestHere on a GPU and where the reference is not installed.
    """
    size = named(name, OFFERED)
    against = against or next(iter(size.references))
    made = reference(size, against, tokens)
    refusals.upstream(size, of)
    place = launch.world()
    session.quiet(place)
    logging.getLogger("model").setLevel(logging.WARNING)  # not each layer's path
    run = Run(bf16=False, on_cpu=launch.device() == "cpu", paths=of.paths)
    if not run.on_cpu:
        raise CannotTestHere("the comparison is in fp32 on a CPU", "CUDA_VISIBLE_DEVICES= before the command")
    chosen = opened(size, run, of, clone)
    return drawn(made, name, against, seed, draws, tokens, lambda variant, at: made.rows(variant, at, run, chosen))


def drawn(
    made: Draw, name: str, against: str, seed: int, draws: int, tokens: int, rows: Callable[[int, int], list[Row]]
) -> Alignment:
    """The table of ``rows`` of (variant, seed), variants by turns, until each has ``draws`` draws without a tie; of
    ``TRIES`` times as many seeds at most."""
    found, complete = list[list[Row]](), [0] * made.variants
    for number in range(TRIES * draws * made.variants):
        variant = number % made.variants
        if complete[variant] < draws:
            found.append(rows(variant, seed + number))
            complete[variant] += all(row.draws for row in found[-1])
    return Alignment(
        size=name,
        against=against,
        seed=seed,
        draws=len(found),
        wanted=draws,
        complete=tuple(complete),
        documents=made.documents,
        tokens=tokens,
        rows=tuple(merged(found)),
    )


def opened(size: Family, run: Run, of: Stack, clone: Path | None) -> dict[str, Choice]:
    """Start Megatron on the stack's code; every kind's path."""
    catalogue.choose(size, run)  # what cannot run here is refused before upstream's code is fetched
    stack = overlay.build(Store(), overlay.chosen("all", False, of), launch.device(), of, clone)
    lock.verify(stack)
    roots = [stack.root(tree) for tree in stack.trees]
    chosen = catalogue.choose(size, run, seams.lacking(roots))
    seams.check(catalogue.seams(run_record.choices(chosen, run)), roots)
    launch.start(launch.world(), stack, run, seed=1234)
    return chosen
