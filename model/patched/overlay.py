"""The import path of a training run: the pinned upstream releases with the validated packs' patches in them.

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

from model.patched import seams
from reproducers.base.errors import CannotTestHere, PatchlaneError
from reproducers.probe.lanes import megatron, transformer_engine
from reproducers.record import entry, schema
from reproducers.record.schema import Pack
from reproducers.upstream import merging, patching, pins
from reproducers.upstream.merging import Applied
from reproducers.upstream.store import Store, Tree

logger = logging.getLogger("model.patched.overlay")
# The stack to train on: the releases that packs are pinned to, and the sets of needs on each device.
STACK = {"megatron-core": "0.19.0", "mamba-ssm": "2.3.2.post1", "liger-kernel": "0.7.0"}
NEEDS = {"cpu": (), "cuda": ("tilelang-0.1.8", "transformer-engine-2.13.0", "pydantic-2.14.3")}
# Without pack 36 torch's AdamW does not resume, without pack 37 masters and moments beyond a padded bucket are lost.
CHECKPOINTS = (36, 37)


@dataclass(frozen=True)
class Overlay:
    """The trees to import, one merged tree a distribution, the needs beside them, and each pack's part."""

    device: str
    trees: dict[str, Tree]
    pristine: dict[str, Tree]
    needs: list[Tree]
    applied: dict[str, list[Applied]] = field(default_factory=dict)

    @property
    def packs(self) -> list[Applied]:
        """Every applied pack, by number."""
        return sorted(itertools.chain(*self.applied.values()), key=lambda applied: applied.pack.number)

    def root(self, distribution: str) -> Path:
        """The folder of a distribution's tree that is on the import path."""
        return patching.import_root(self.trees[distribution].path, _source_root(distribution))


def _live(distribution: str, packs: Iterable[Pack]) -> Pack:
    """A pack whose live pin is the stack's release of the distribution; it names artefacts and source root."""
    release = STACK[distribution]
    return next(p for p in packs if p.upstream.distribution == distribution and p.pins["live"].release == release)


def _source_root(distribution: str) -> str:
    return _live(distribution, schema.load_packs()).upstream.source_root


def candidates(packs: Iterable[Pack]) -> list[Pack]:
    """Packs with a patch for a release of the stack, except those held back from filing."""
    return [
        pack
        for pack in packs
        if pack.patch.is_file()
        and STACK.get(pack.upstream.distribution) == pack.pins["live"].release
        and pack.filing.decision != "hold"
    ]


def states() -> dict[str, str]:
    """{pack: state} from the manifest. Raises PatchlaneError in an installed wheel, which has no packs."""
    manifest = schema.ROOT / "manifest.yaml"
    if not manifest.is_file():
        raise PatchlaneError(
            f"no packs beside {schema.ROOT / 'model'}", "train from a clone: pip install -e '.[cpu,train]'"
        )
    return {name: pack.state for name, pack in entry.read(manifest).packs.items()}


def chosen(patches: str, checkpoints: bool = False) -> list[Pack]:
    """The packs meant by ``--patches``: "none", "all" validated ones, or ids. ``checkpoints`` adds those that a
    checkpoint needs.

    Raises PatchlaneError if a wanted pack is not validated or its receipt is stale, which proves other code. "all"
    leaves out a pack that was never validated, and logs this.
    """
    if patches == "none" and not checkpoints:
        return []
    packs, known = schema.load_packs(), states()
    able = candidates(packs)
    if patches == "none":
        wanted = []
    elif patches == "all":
        new = [pack for pack in able if known.get(pack.id) in ("draft", "reproduced")]
        for pack in new:
            logger.info("%s is not validated yet (%s): left out", pack.id, known[pack.id])
        wanted = [pack for pack in able if pack not in new]
    else:
        wanted = schema.select(patches.split(","), packs)
        for pack in wanted:
            if pack not in able:
                stack = ", ".join(f"{name} {release}" for name, release in STACK.items())
                raise PatchlaneError(f"{pack.id} has no patch for the stack ({stack})", "--patches all")
    if checkpoints:
        added = [pack for pack in able if pack.number in CHECKPOINTS and pack not in wanted]
        for pack in added:
            logger.info("%s is added: a checkpoint needs it", pack.id)
        wanted = sorted([*wanted, *added], key=lambda pack: pack.number)
    unproved = [pack.id for pack in wanted if known.get(pack.id) not in ("validated", "filed")]
    if unproved:
        listed = ", ".join(f"{name} is {known.get(name)}" for name in unproved)
        remedy = f"python -m reproducers.run {' '.join(unproved)}, then python -m reproducers.manifest refresh"
        other = "train with --save-every 0" if checkpoints else "name others with --patches"
        raise PatchlaneError(f"a patch to train on is not validated: {listed}", f"{remedy}; or {other}")
    return wanted


def build(store: Store, packs: list[Pack], device: str) -> Overlay:
    """Trees of the stack with the packs' patches merged in; fetched, unpacked and cached by content."""
    known, pristine, trees, applied = schema.load_packs(), dict[str, Tree](), dict[str, Tree](), {}
    for distribution in STACK:
        live = _live(distribution, known)
        pristine[distribution] = pins.base_tree(store, live, live.pins["live"], {})
        own = [pack for pack in packs if pack.upstream.distribution == distribution]
        applied[distribution] = [merging.apply_alone(store, pristine[distribution], pack) for pack in own]
        trees[distribution] = merging.merge(store, pristine[distribution], applied[distribution])
    needs = [tree for name in NEEDS[device] for tree in _needs(store, name, device, known)]
    return Overlay(device, trees, pristine, needs, applied)


def _needs(store: Store, name: str, device: str, packs: Iterable[Pack]) -> list[Tree]:
    """The trees of one set of needs, found through a pack that names it."""
    pack = next(p for p in packs if name in p.pins["live"].needs)
    pin = pack.pins["live"].model_copy(update={"needs": [name]})
    return pins.need_trees(store, pack, pin, device)


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
    seams.NO_PEFT("peft")
    folders = (Path(entry) / "mamba_ssm" for entry in sys.path)
    seams.BARE_MAMBA("mamba_ssm", next(folder for folder in folders if folder.is_dir()))
    megatron.megatron_lane(overlay.device)
    if overlay.device == "cuda":
        transformer_engine.import_transformer_engine("cuda")  # with the shim that its core needs beside torch's cuBLAS
