"""Every file of the report page: pages from ``templates/site``, and copies of the receipts that they link to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reproducers.base.glossary import STATES
from reproducers.base.verdicts import HEALTHY, VERDICT_MEANING
from reproducers.base.wording import short
from reproducers.desk.page import views as site_facts
from reproducers.desk.page.markup import clean
from reproducers.desk.page.training import SHORT, TrainingRun, training_runs
from reproducers.evidence.verification import refuse, verify_all
from reproducers.record.schema import ROOT, Pack

TEMPLATES = ROOT / "templates" / "site"
TONES = {
    "validated": "good", "ready": "good", "approved": "good", "filed": "good", "merged": "good", "guard": "good",
    "reproduced": "info", "retired": "off", "held": "off", "draft": "off",
    "stale": "warn", "fixed-upstream": "warn",
    "REPRODUCED_AND_FIXED": "good", "REPRODUCED": "info", "FIXED_UPSTREAM": "info",
    "UNTESTABLE": "off", "INCONCLUSIVE": "warn", "PATCH_STALE": "warn",
    "bug": "bad", "different": "bad", "failed": "bad", "healthy": "good", "passed": "good", "noted": "off",
    "skipped": "off", "open": "info", "closed": "off",
}  # fmt: skip


def tone(word: str) -> str:
    """The colour class of a state, verdict or outcome; the word itself is always shown beside it."""
    return TONES.get(word.split("(")[0], "bad")


def number(value: object) -> str:
    """A receipt's value as bodies print it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finalize(value: object) -> object:
    return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value)


def environment() -> Environment:
    """Templates that escape everything, and refuse names that do not exist."""
    made = Environment(
        loader=FileSystemLoader([str(TEMPLATES)]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.filters |= {"tone": tone, "number": number, "short": short}
    return made


def _context(packs: list[site_facts.PackView], runs: list[TrainingRun]) -> dict[str, Any]:
    receipts = [receipt for view in packs for receipt in view.history]
    states: dict[str, int] = {}
    for view in packs:
        word = view.entry.state.split("(")[0]
        states[word] = states.get(word, 0) + 1
    used = {receipt.body.verdict for receipt in receipts}
    return {
        "packs": packs,
        "hosts": site_facts.host_views(packs),
        "runs": runs,
        "states": states,
        "receipts": len(receipts),
        "newest": max(receipt.body.started for receipt in receipts),
        "meanings": {word.value: said for word, said in VERDICT_MEANING.items() if word in used},
        "legend": {word: said.meaning for word, said in STATES.items() if word in states},
        "least": SHORT,
        "not_in": {view.pack.id: [n for n, word in view.entry.tried.items() if word in HEALTHY] for view in packs},
    }


def pages(packs: list[Pack], root: Path) -> dict[str, bytes]:
    """{path in the site: content} for all packs and the receipts under ``root``, verified first.

    PatchlaneError when a receipt is not what its digests say, or there is none.
    """
    refuse(verify_all(root))
    views, runs = site_facts.pack_views(packs, root), training_runs(root / "train")
    context, made = _context(views, runs), environment()

    def page(template: str, path: str, **more: Any) -> tuple[str, bytes]:
        up = "../" * path.count("/")
        return path, made.get_template(template).render(**context, **more, up=up, path=path).encode()

    return dict(
        [
            ("site.css", (TEMPLATES / "site.css").read_bytes()),
            page("index.html.j2", "index.html"),
            page("training.html.j2", "training.html"),
            *(page("pack.html.j2", view.page, view=view) for view in views),
            *(page("host.html.j2", host.page, host=host) for host in context["hosts"]),
            *_copies(views, runs),
        ]
    )


def _copies(packs: list[site_facts.PackView], runs: list[TrainingRun]) -> list[tuple[str, bytes]]:
    receipts = [receipt for view in packs for receipt in view.history]
    found = [(receipt.href, receipt.path.read_bytes()) for receipt in receipts]
    found += [(f"{view.folder}/{name}", data) for view in packs for name, data in view.files.items()]
    found += [(receipt.log_href, receipt.path.with_suffix(".log").read_bytes()) for receipt in receipts]
    return found + [(f"{run.href}/{path.name}", path.read_bytes()) for run in runs for path in run.files]
