"""The table of packs, ``packs/README.md``: a pure function of packs and manifest."""

from __future__ import annotations

import re

from patchlane.base.wording import printable, short
from reproducers.base.verdicts import BROKEN, HEALTHY, Verdict
from reproducers.evidence import shelf
from reproducers.record import mutation
from reproducers.record.entry import Entry, Manifest, Reach
from reproducers.record.schema import Pack

# what begins HTML, a picture, a link, code, emphasis or an entity; not a lone < or the _ inside of a name
ACTIVE = re.compile(r"[\\`*\[\]]|<(?=[A-Za-z/!?])|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")

HEADER = """# Packs

Generated from `packs/*/pack.yaml` and `receipts/` by `python -m reproducers.manifest refresh`; never edited.
"Bug in" lists what receipts show broken, "not in" what they show healthy; a lane's cell is its newest verdict at the
live pin, and a lane that cannot exist says so in `pack.yaml`. "Mutants killed" are the mistakes in the patch that its
checks see, by the newest score of patch and reproducer as they are (`python -m reproducers.mutate`); scores with † have
those of which a line did not run among them. "Training runs" are the patch's hunks that kept runs of `model/`
executed, of all, with the day of the newest such run and where they ran; of those that "cannot" the pack says why.
`signed` says that a signature lies beside the receipt; `python -m reproducers.receipts verify --signers FILE` says
whose, and whether it holds.
[What the states and the words mean](../docs/glossary.md).

"""
COLUMNS = (
    *("pack", "upstream", "bug", "harm", "kind", "state", "bug in", "not in", "cpu", "cuda"),
    *("mutants killed", "training runs", "newest receipt"),
)


def _names(tried: dict[str, Verdict], words: tuple[Verdict, ...]) -> str:
    return short(", ".join(name for name, word in tried.items() if word in words)) or "–"


def _lane(pack: Pack, entry: Entry, lane: str) -> str:
    if lane in pack.no_lane:
        return "none"
    newest = entry.lanes.get(lane)
    if newest is None:
        return "no receipt"
    return f"{newest.verdict}{' (stale)' if newest.changed_since else ''}"


def _newest(entry: Entry) -> str:
    lanes = entry.lanes.values()
    if not lanes:
        return "–"
    last = max(lanes, key=lambda lane: (lane.taken, lane.receipt))
    signed = shelf.signature(shelf.COMMITTED / last.receipt).is_file()
    return f"[{last.taken} {last.host.alias}](../receipts/{last.receipt}), {'signed' if signed else 'unsigned'}"


def _killed(pack: Pack) -> str:
    """Killed of all mutants, by the newest kept score of the patch and the reproducer as they are."""
    score = mutation.newest(pack, shelf.COMMITTED)
    return score.cell if score else "–"


def trained(patches: dict[str, list[Reach]]) -> str:
    """Of each patch that a kept run executed, or that says why none can: its hunks that ran, of all, where, and the
    newest run's day."""
    cells = []
    for name, reaches in patches.items():
        days = [reach.newest for reach in reaches if reach.newest]
        if not days and not all(reach.why for reach in reaches):
            continue
        of = dict[str, int]()
        for reach in reaches:
            where = "cannot" if reach.why else reach.where
            of[where] = of.get(where, 0) + len(reach.hunks)
        ran = sum(len(reach.hunks) for reach in reaches if reach.newest)
        parts = ", ".join(f"{count} {where}" for where, count in of.items())
        day = f" ({max(days)})" if days else ""
        cells.append(f"{'' if len(patches) == 1 else f'{name}: '}{ran} of {sum(of.values())}{day}: {parts}")
    return "; ".join(cells) or "–"


def row(pack: Pack, entry: Entry, patches: dict[str, list[Reach]]) -> str:
    """One pack's line."""
    cells = [
        f"[{pack.number:02d}]({pack.folder.name}/notes.md)",
        pack.upstream.distribution,
        _plain(pack.title),
        pack.harm or "–",
        pack.kind,
        entry.state,
        _names(entry.tried, BROKEN),
        _names(entry.tried, HEALTHY),
        _lane(pack, entry, "cpu"),
        _lane(pack, entry, "cuda"),
        _killed(pack),
        trained(patches),
        _newest(entry),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _plain(title: str) -> str:
    """A title as Markdown shows it: no picture or link of it is loaded, no mark of it is obeyed."""
    return ACTIVE.sub(r"\\\g<0>", printable(title)).replace("\n", " ")


def render(packs: list[Pack], content: Manifest) -> str:
    """The page's text."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return (
        HEADER + head + "".join(row(pack, content.packs[pack.id], content.training.get(pack.id, {})) for pack in packs)
    )
