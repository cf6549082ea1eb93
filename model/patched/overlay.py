"""The import path of a training run: a stack's upstream code with the validated packs' patches in it.

Nothing falls back: a patch that does not apply, or a pack that is not validated, stops the run.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from model.patched import stacks
from model.patched.stacks import Stack, Standing
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.probe.lanes import megatron, transformer_engine
from reproducers.record import entry, schema
from reproducers.record.entry import Entry, Manifest
from reproducers.record.schema import Pack
from reproducers.upstream import merging, patching, pins
from reproducers.upstream.merging import Applied
from reproducers.upstream.pins import Source
from reproducers.upstream.store import Store, Tree

logger = logging.getLogger("model.patched.overlay")
MODEL = (42, 43)  # without them Mamba-3 cannot be imported here, and no spec names the stack's last norm
CHECKPOINTS = (36, 41)  # without them torch's AdamW does not resume, and a save starts a process that is not used
GRAPHS = (40,)  # without it gradients of replayed layers with torch's norm are wrong, in silence


@dataclass(frozen=True)
class Overlay:
    """The trees to import, one merged tree a distribution, the needs beside them, and each pack's part."""

    device: str
    trees: dict[str, Tree]
    pristine: dict[str, Tree]
    needs: list[Tree]
    applied: dict[str, list[Applied]] = field(default_factory=dict)
    stack: Stack = field(default_factory=stacks.named)

    @property
    def packs(self) -> list[Applied]:
        """Every applied pack, by number."""
        return sorted(itertools.chain(*self.applied.values()), key=lambda applied: applied.pack.number)

    def root(self, distribution: str) -> Path:
        """The folder of a distribution's tree that is on the import path."""
        return patching.import_root(self.trees[distribution].path, _source_root(distribution))


def _upstream(distribution: str) -> Pack:
    """A pack of the distribution; it names repository and source root."""
    return next(pack for pack in schema.load_packs() if pack.upstream.distribution == distribution)


def _source_root(distribution: str) -> str:
    return _upstream(distribution).upstream.source_root


def pristine(store: Store, stack: Stack, clone: Path | None = None) -> dict[str, Tree]:
    """The stack's upstream trees as published; a commit's from ``clone`` where one is given."""

    def tree(name: str) -> Tree:
        pin = stack.code[name]
        return pins.base_tree(store, _upstream(name), pin, Source(upstream=clone if pin.release is None else None))

    return {name: tree(name) for name in stack.code}


def candidates(packs: Iterable[Pack], stack: Stack | None = None) -> list[Pack]:
    """Packs whose bug the stack's code has and whose patch mends it there, except those held back from filing.

    Of the pack's own live pin its state says so; of any other tree a receipt has to.
    """
    stack = stack or stacks.named()
    ours = [pack for pack in packs if pack.upstream.distribution in stack.code and pack.filing.decision != "hold"]
    ours = [pack for pack in ours if stacks.patch_of(stack, pack)]
    if all(stack.pin_name(pack) == "live" for pack in ours):
        return ours
    known = _entries()
    return [pack for pack in ours if stacks.mended(stack, pack, known.get(pack.id))]


def standings(store: Store, stack: Stack, clone: Path | None = None) -> list[Standing]:
    """What each pack of the stack's distributions with a patch is worth on the stack."""
    trees, known = pristine(store, stack, clone), _entries()
    packs = [pack for pack in schema.load_packs() if pack.upstream.distribution in trees and pack.patch.is_file()]
    return [stacks.standing(stack, pack, known.get(pack.id), trees[pack.upstream.distribution]) for pack in packs]


def states() -> dict[str, str]:
    """{pack: state} from the manifest."""
    return {name: pack.state for name, pack in _entries().items()}


def _entries() -> dict[str, Entry]:
    return _manifest().packs


def _manifest() -> Manifest:
    return entry.read(schema.ROOT / "manifest.yaml")


def wanted(overlay: Overlay, asked: bool) -> set[str]:
    """Packs of which a run has to execute something in its first steps: those that runs by default did, if it is one.
    ``asked``: whether it was asked for another architecture, or for paths that its stack does not name."""
    if asked:
        return set()
    known, here = _manifest().training, f"{overlay.device} {overlay.stack.name}"
    patches = {applied.pack.id: known.get(applied.pack.id, {}).get(applied.patch.name, []) for applied in overlay.packs}
    return {name for name, reaches in patches.items() if any(here in reach.default for reach in reaches)}


def chosen(patches: str, checkpoints: bool = False, stack: Stack | None = None, graphs: bool = False) -> list[Pack]:
    """The packs meant by ``--patches``: "none", "all" validated ones, "all" without those after a minus ("all,-53"), or
    ids; and those that the model needs, with ``checkpoints`` those that a checkpoint needs too, with ``graphs`` those
    of CUDA graphs. ``stack``: default: the default one.

    Raises PatchlaneError if a wanted pack is not validated or its receipt is stale, which proves other code, or if the
    stack lacks one that CUDA graphs need. "all" leaves out a pack that was never validated, and logs this.
    """
    stack = stack or stacks.named()
    packs, known = schema.load_packs(), states()
    able = candidates(packs, stack)
    first, *rest = patches.split(",")
    if patches == "none":
        wanted = []
    elif first == "all" and all(word.startswith("-") for word in rest):
        left_out = schema.select([word.removeprefix("-") for word in rest], packs) if rest else []
        new = [pack for pack in able if known.get(pack.id, "draft") in stacks.UNPROVED]
        for pack in new:
            logger.info("%s is not validated yet (%s): left out", pack.id, known.get(pack.id, "not in the manifest"))
        wanted = [pack for pack in able if pack not in new and pack not in left_out]
    else:
        wanted = schema.select(patches.split(","), packs)
        for pack in wanted:
            if pack not in able:
                remedy = f"--patches all; python -m model.lock table --stack {stack.name} says why"
                raise PatchlaneError(f"{pack.id} has no patch for the stack {stack.name} ({stack})", remedy)
    if graphs and (lacks := [number for number in GRAPHS if number not in {pack.number for pack in able}]):
        raise PatchlaneError(
            f"CUDA graphs need pack {lacks[0]}, which has no validated patch for the stack {stack.name} ({stack})",
            f"train without --cuda-graphs; python -m model.lock table --stack {stack.name} says why",
        )
    asked = {pack.id for pack in wanted}
    needed: list[tuple[tuple[int, ...], str, str]] = [(MODEL, "the model", "")]
    needed += [(CHECKPOINTS, "a checkpoint", "train with --set save_every=0")] * checkpoints
    needed += [(GRAPHS, "a CUDA graph", "train without --cuda-graphs")] * graphs
    spared = dict[str, str]()  # how to do without a pack that was added
    for numbers, what, without in needed:
        added = [pack for pack in able if pack.number in numbers and pack not in wanted]
        for pack in added:
            logger.info("%s is added: %s needs it", pack.id, what)
            spared[pack.id] = without
        wanted = sorted([*wanted, *added], key=lambda pack: pack.number)
    unproved = [pack.id for pack in wanted if known.get(pack.id) not in ("validated", "filed")]
    if unproved:
        listed = ", ".join(f"{name} is {known.get(name)}" for name in unproved)
        remedy = f"python -m reproducers.run {' '.join(unproved)}, then python -m reproducers.manifest refresh"
        others = ["name others with --patches"] if asked & {*unproved} else []
        others += dict.fromkeys(spared[name] for name in unproved if spared.get(name))
        raise PatchlaneError(f"a patch to train on is not validated: {listed}", "; or ".join([remedy, *others]))
    return wanted


def build(
    store: Store, packs: list[Pack], device: str, stack: Stack | None = None, clone: Path | None = None
) -> Overlay:
    """Trees of the stack with the packs' patches merged in; fetched, unpacked and cached by content.

    ``clone``: what a commit is taken from if the store lacks it; default: the upstream's repository.
    """
    stack = stack or stacks.named()
    published, trees, applied = pristine(store, stack, clone), dict[str, Tree](), {}
    for distribution, tree in published.items():
        own = [pack for pack in packs if pack.upstream.distribution == distribution]
        alone = [merging.apply_alone(tree, pack, stacks.patch_of(stack, pack)) for pack in own]
        applied[distribution] = alone
        trees[distribution] = merging.merge(store, tree, alone)
    known = schema.load_needs(schema.ROOT / "packs")
    needs = pins.need_trees(store, {name: known[name] for name in stack.needs[device]}, device)
    return Overlay(device, trees, published, needs, applied, stack)


def activate(overlay: Overlay) -> None:
    """Put the overlay first on this process's import path. Raises CannotTestHere if upstream was imported before.

    On the CPU ``reproducers.probe.lanes.megatron`` stands in for the CUDA names that Megatron asks for.
    """
    for package in ("megatron.core", "mamba_ssm", "liger_kernel"):
        if package in sys.modules:
            raise CannotTestHere(f"{package} was imported before the overlay", "start a new process")
    roots = [*map(overlay.root, overlay.trees), *(tree.path for tree in overlay.needs)]
    sys.path[:0] = [
        str(root.resolve()) for root in roots
    ]  # the names by which the watch that proves execution knows files
    importlib.invalidate_caches()
    megatron.megatron_lane(overlay.device)
    if overlay.device == "cuda":
        transformer_engine.import_transformer_engine("cuda")  # with the shim that its core needs beside torch's cuBLAS
