"""A proposal of waves as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from reproducers.desk.waves.proposal import Proposal, Wave
from reproducers.record.schema import Pack


def as_json(proposal: Proposal, waves: Sequence[Wave]) -> str:
    """JSON text of these waves and of every pack's explanation."""
    explanations = [
        {
            "pack": item.pack.id,
            "title": item.pack.title,
            "repository": item.pack.upstream.repo,
            "as": item.pack.filing.decision,
            "class": item.kind,
            "wave": item.wave,
            "why": item.why,
            "blockers": [asdict(blocker) for blocker in item.blockers],
        }
        for item in proposal.explanations
    ]
    content = {
        "schema_version": 2,
        "date": str(proposal.asked),
        "size": proposal.size,
        "gap": proposal.gap,
        "last_filed": str(proposal.last_filed) if proposal.last_filed else None,
        "waves": [
            {"number": wave.number, "date": str(wave.date), "packs": [pack.id for pack in wave.packs]} for wave in waves
        ],
        "explanations": explanations,
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def as_lines(proposal: Proposal, waves: Sequence[Wave]) -> Iterator[str]:
    """Lines of text: these waves with their packs, then every pack with its wave and why, or why in none."""
    for wave in waves:
        yield f"Wave {wave.number}: {wave.date:%A} {wave.date}"
        yield from (f"  {pack.id}  {pack.filing.decision}: {pack.title}" for pack in wave.packs)
    if not waves:
        yield "Nothing is ready, because:" if proposal.explanations else "Nothing is ready: there is no pack."
    shared: dict[str, dict[str, str]] = {}  # {remedy as it is for every pack: {pack: its own}}
    for item in proposal.explanations:
        own = [] if item.wave else item.blockers
        for blocker in own:
            shared.setdefault(_shared(blocker.remedy, item.pack), {})[item.pack.id] = blocker.remedy
        out = "; ".join(blocker.what for blocker in own)
        yield f"{item.pack.id}  " + (f"wave {item.wave}: {item.why}" if item.wave else f"out: {out}")
    for remedy, of in shared.items():
        yield f"fix: {remedy if len(of) > 1 else next(iter(of.values()))} ({', '.join(of)})"


def _shared(remedy: str, pack: Pack) -> str:
    """The remedy as it is for every pack alike."""
    return remedy.replace(pack.folder.name, "NN_NAME").replace(pack.id, "packNN")
