"""Every file of the report page: pages from ``templates/site``, and copies of the newest receipts.

Of an older receipt and of a training run's records the page tells where in the repository they lie, so that the site
stays small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from patchlane.base.wording import printable, short
from reproducers.base.glossary import STATES
from reproducers.base.verdicts import HEALTHY, VERDICT_MEANING
from reproducers.desk.page import feeds, views
from reproducers.desk.page.standings import ANSWERS, matrices
from reproducers.desk.page.training import SHORT, TrainingRun, by_size, training_runs
from reproducers.evidence.shelf import signature
from reproducers.evidence.verification import refuse, verify_all
from reproducers.kept import archive, xz
from reproducers.record.schema import ROOT, Pack, load_releases

TEMPLATES = ROOT / "templates" / "site"
TONES = {
    "validated": "good",
    "filed": "good",
    "merged": "good",
    "guard": "good",
    "reproduced": "info",
    "held": "off",
    "draft": "off",
    "stale": "warn",
    "fixed-upstream": "warn",
    "REPRODUCED_AND_FIXED": "good",
    "REPRODUCED": "info",
    "FIXED_UPSTREAM": "info",
    "UNTESTABLE": "off",
    "INCONCLUSIVE": "warn",
    "PATCH_STALE": "warn",
    "bug": "bad",
    "different": "bad",
    "failed": "bad",
    "healthy": "good",
    "passed": "good",
    "noted": "off",
    "skipped": "off",
    "open": "info",
    "closed": "off",
}


def tone(word: str) -> str:
    """The colour class of a state, verdict or outcome; a page always shows the word too."""
    return TONES.get(word, "bad")


def number(value: object) -> str:
    """A receipt's value, a float with four digits as in the texts for upstream."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finalize(value: object) -> object:
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def environment() -> Environment:
    """The templates: they escape everything and refuse unknown names."""
    templates = Environment(
        loader=FileSystemLoader([str(TEMPLATES)]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    templates.filters |= {"tone": tone, "number": number, "short": short}
    return templates


def _context(packs: list[views.PackView], runs: list[TrainingRun]) -> dict[str, Any]:
    receipts = [receipt for view in packs for receipt in view.history]
    told = [view.told for view in packs]
    states: dict[str, int] = {}
    for view in packs:
        word = view.entry.state.split("(")[0]
        states[word] = states.get(word, 0) + 1
    used = {receipt.body.verdict for receipt in receipts}
    return {
        "packs": packs,
        "hosts": views.host_views(packs),
        "runs": runs,
        "sizes": by_size(runs),
        "told": told,
        "matrices": matrices(told, load_releases(packs[0].pack.folder.parent)),
        "answers": ANSWERS,
        "copied": {lane.receipt.href for view in packs for lane in view.lanes},
        "states": states,
        "receipts": len(receipts),
        "newest": max(receipt.body.started for receipt in receipts),
        "meanings": {word.value: meaning for word, meaning in VERDICT_MEANING.items() if word in used},
        "legend": {word: entry.meaning for word, entry in STATES.items() if word in states},
        "least": SHORT,
        "not_in": {view.pack.id: [n for n, word in view.entry.tried.items() if word in HEALTHY] for view in packs},
    }


def pages(packs: list[Pack], root: Path) -> dict[str, bytes]:
    """{path in the site: content} for all packs, and for the receipts under ``root``, which it verifies first.

    Raises PatchlaneError if a receipt does not match its digests, or if there is none.
    """
    refuse(verify_all(root))
    shown, runs = views.pack_views(packs, root), training_runs(root / "train")
    context, templates = _context(shown, runs), environment()

    def page(template: str, path: str, **more: Any) -> tuple[str, bytes]:
        up = "../" * path.count("/")
        return path, templates.get_template(template).render(**context, **more, up=up, path=path).encode()

    return dict(
        [
            ("site.css", (TEMPLATES / "site.css").read_bytes()),
            page("index.html.j2", "index.html"),
            page("releases.html.j2", "releases.html"),
            page("hosts.html.j2", "hosts.html"),
            page("training.html.j2", "training.html"),
            *(page("pack.html.j2", view.page, view=view) for view in shown),
            *(page("run.html.j2", run.page, run=run) for run in runs),
            (feeds.FEED, feeds.feed(context["told"])),
            *((f"index/{one.distribution}.json", feeds.index(one)) for one in context["matrices"]),
            *_copies(shown, runs),
        ]
    )


def _copies(packs: list[views.PackView], runs: list[TrainingRun]) -> list[tuple[str, bytes]]:
    receipts = [lane.receipt for view in packs for lane in view.lanes]
    copies = [(receipt.href, archive.data(receipt.path)) for receipt in receipts]
    copies += [(f"{view.folder}/{name}", data) for view in packs for name, data in view.files.items()]
    copies += [(receipt.log_href, xz.packed(archive.data(receipt.log))) for receipt in receipts]
    copies += [(r.signature_href, signature(r.path).read_bytes()) for r in receipts if r.signature_href]
    return copies + [(f"{run.href}/{run.files[0].name}", run.files[0].read_bytes()) for run in runs]
