"""Which mutants of a pack are tried: those written by hand, and those generated from the lines that its patch adds.

Beside them its alternatives, right fixes that the checks must accept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.desk.start import mutants as hand
from reproducers.record.schema import Pack
from reproducers.studies.mutation import generated
from reproducers.studies.mutation.generated import Generated
from reproducers.studies.mutation.trying import Candidate
from reproducers.upstream.store import Tree

Only = Literal["hand", "generated", "alternatives"]


@dataclass(frozen=True)
class Chosen:
    """The mutants and alternatives to try, generated ones in the order in which they were drawn.

    ``known`` is how many generated ones there are, ``names`` those of all mutants, chosen or not.
    """

    hand: list[tuple[hand.Mutant, Candidate]]
    generated: list[tuple[Generated, Candidate]]
    alternatives: list[Candidate]
    known: int
    names: frozenset[str]

    @property
    def candidates(self) -> list[Candidate]:
        return [*self.alternatives, *(candidate for _, candidate in (*self.hand, *self.generated))]

    @property
    def diffs(self) -> dict[str, str]:
        """{mutant: its difference to the patched files}."""
        written = {candidate.name: mutant.diff for mutant, candidate in self.hand}
        return written | {candidate.name: mutant.diff for mutant, candidate in self.generated}

    def among(self, tried: set[str]) -> Chosen:
        """Those of the mutants that were tried."""
        return dataclasses.replace(
            self,
            hand=[(mutant, candidate) for mutant, candidate in self.hand if candidate.name in tried],
            generated=[(mutant, candidate) for mutant, candidate in self.generated if candidate.name in tried],
            alternatives=[candidate for candidate in self.alternatives if candidate.name in tried],
        )

    def listing(self) -> Iterator[str]:
        """A line a mutant: its name, its place, and its mistake; a line an alternative."""
        yield from (f"{candidate.name}  {candidate.where}" for candidate in self.alternatives)
        yield from (f"{candidate.name}  {candidate.where}  {mutant.why}" for mutant, candidate in self.hand)
        mutants = [mutant for mutant, _ in self.generated]
        yield from generated.listing(sorted(mutants, key=lambda mutant: (mutant.path, mutant.line)))


def choose(pack: Pack, tree: Tree, only: Only | None, sample: int | None, seed: int) -> Chosen:
    """The pack's mutants for the pristine ``tree``; ``sample`` draws from the generated ones alone."""
    written = [*by_hand(pack, tree)]
    with hand.patched_files(pack, tree) as root:
        known = generated.of(pack, root)
        drawn = generated.sample(known, sample, seed) if only in (None, "generated") else []
        most = hand.hunks(pack)
        made = [(mutant, _candidate(root, mutant, most)) for mutant in drawn]
    if twice := {path.stem for path in hand.paths(pack)} & {path.stem for path in hand.alternatives(pack)}:
        raise PatchlaneError(
            f"{pack.folder.name}: mutants/ and alternatives/ both have {', '.join(sorted(twice))}.patch", "rename one"
        )
    names = frozenset([mutant.name for mutant in known] + [candidate.name for _, candidate in written])
    others = [*alternatives(pack, tree)] if only != "generated" else []
    if only == "alternatives" and not others:
        raise PatchlaneError(
            f"{pack.id} has no alternatives to try",
            f"write one, packs/{pack.folder.name}/alternatives/NAME.patch: {hand.PAGE}",
        )
    return Chosen(written if only in (None, "hand") else [], made, others, len(known), names)


def by_hand(pack: Pack, tree: Tree) -> Iterator[tuple[hand.Mutant, Candidate]]:
    """The pack's hand-written mutants, each with its whole patch."""
    for path in hand.paths(pack):
        mutant = hand.read(path)
        text = hand.whole(pack, tree, mutant)
        yield mutant, Candidate(path.stem, "hand", f"mutants/{path.name}", text, source=file_sha256(path))


def alternatives(pack: Pack, tree: Tree) -> Iterator[Candidate]:
    """The pack's alternatives, each with its patch."""
    for path in hand.alternatives(pack):
        text = hand.alternative(pack, tree, path)
        yield Candidate(path.stem, "alternative", f"alternatives/{path.name}", text, source=file_sha256(path))


def _candidate(root: Path, mutant: Generated, hunks: int) -> Candidate:
    path = root / mutant.path
    path.write_bytes(mutant.after.encode())
    text = hand.difference(root, hunks)
    path.write_bytes(mutant.before.encode())
    return Candidate(mutant.name, "generated", mutant.where, text, *mutant.exchanged)
