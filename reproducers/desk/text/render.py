"""The text of a pack's issue, pull request or comment.

``body.md.j2`` of the pack fills the blocks of a form in ``templates/forms/``, one folder an upstream whose own form it
follows. Facts come from pack.yaml, the manifest and the newest receipts only: a number is named by lane, arm and check,
never typed.
"""

from __future__ import annotations

import datetime
import functools
import re
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, Template, TemplateError
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from patchlane.base.errors import PatchlaneError
from reproducers.desk.patches import short_header
from reproducers.desk.text.lookups import Facts, thread
from reproducers.desk.text.unwrap import unwrap
from reproducers.record.entry import Entry
from reproducers.record.schema import ROOT, Pack, text_of

FORMS = ("issue", "pr", "comment")
PLAIN = "plain"
FOLDER = ROOT / "templates" / "forms"
# A fenced block, which stays as it is, or the gap that an empty part leaves.
FENCE_OR_GAP = re.compile(r"^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)$|\n(?:[ \t]*\n){2,}", re.M | re.S)
OWNERS = (Facts, str, int, float, list, tuple, dict, datetime.date)  # whose methods read and do nothing else


class _Sandbox(ImmutableSandboxedEnvironment):
    """A body is a stranger's data: it names facts, and can neither run code nor read or write a file."""

    def is_safe_callable(self, obj: Any) -> bool:
        """Methods of OWNERS, macros, and what every template has; no method of a record, a path or a class."""
        known = isinstance(obj, Macro) or any(obj is one for one in self.globals.values())
        return super().is_safe_callable(obj) and (known or type(getattr(obj, "__self__", None)) in OWNERS)


_environment = _Sandbox(
    loader=FileSystemLoader([str(FOLDER)]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


@functools.lru_cache(maxsize=64)
def _template(source: str) -> Template:
    """A body as it is compiled, once for all of its forms. TemplateError if it is no template."""
    return _environment.from_string(source)


def patch(pack: Pack) -> Path:
    """The patch at the filed pin; PatchlaneError if that pin has none."""
    path = pack.patch_at(pack.filing_pin)
    if path is None:
        record = f"packs/{pack.folder.name}/pack.yaml"
        raise PatchlaneError(
            f"{pack.id} has no patch at pin {pack.filing_pin}", f"{record}: that pin's patch, or filing.pin"
        )
    return path


def forms(pack: Pack) -> tuple[str, ...]:
    """The forms that the pack can be posted as: a pull request needs a fix, a comment needs a thread."""
    can = {"issue": True, "pr": pack.patch.is_file(), "comment": thread(pack) is not None}
    return tuple(form for form in FORMS if can[form])


def own(pack: Pack) -> str:
    """The form of ``filing.decision``; issue if the decision is no form."""
    return pack.filing.decision if pack.filing.decision in FORMS else "issue"


def template(pack: Pack, form: str, regression: bool) -> str:
    """The upstream's form (for a regression its regression form, if it has one), else the plain form."""
    folder = pack.upstream.repo.replace("/", "_")
    names = [f"{folder}/regression.md.j2"] if form == "issue" and regression else []
    names += [f"{folder}/{form}.md.j2", f"{PLAIN}/{form}.md.j2"]
    return next(name for name in names if (FOLDER / name).is_file())


def render(pack: Pack, receipts: Path, form: str | None = None) -> str:
    """The text; PatchlaneError if the body names a value that no receipt holds, is no template, or lacks the form."""
    return rendered(pack, receipts, form)[0]


def rendered(pack: Pack, receipts: Path, form: str | None = None, entry: Entry | None = None) -> tuple[str, Facts]:
    """The text as ``render`` gives it, and the facts that it was made of, with the receipts that it quotes.

    ``entry``: the pack's manifest entry where it is known, for it takes every receipt to derive one.
    """
    form = form or own(pack)
    if form not in forms(pack):
        lack = "a fix" if form == "pr" else "a thread that it belongs to"
        raise PatchlaneError(f"{pack.id} cannot be a {form}: that needs {lack}", f"--as {', '.join(forms(pack))}")
    facts = Facts(pack, receipts, entry)
    context = {
        "pack": pack,
        "live": pack.pins["live"],
        "pin": pack.pins[facts.pin],
        "facts": facts,
        "thread": thread(pack),
        "command": facts.commands[-1][1],
        "form": template(pack, form, facts.last_good is not None),
    }
    names = ("measured", "limit", "versions", "host", "label", "measured_at")
    try:
        body = _template(text_of(pack.folder / "body.md.j2"))
        text = body.render(**context, **{name: getattr(facts, name) for name in names})
    except (TemplateError, OSError) as error:
        raise PatchlaneError(f"{pack.folder.name}/body.md.j2: {error}", "correct the template") from error
    kept = FENCE_OR_GAP.sub(lambda match: match[0] if match["fence"] else "\n\n", text)
    return unwrap(kept.strip() + "\n"), facts


def bodies(pack: Pack, receipts: Path) -> dict[str, str]:
    """{form: text} of every form that the pack can take."""
    return {form: render(pack, receipts, form) for form in forms(pack)}


def title(pack: Pack, form: str, receipts: Path) -> str:
    """The line above the text, with the mark that the upstream's form asks for; a pull request's is its commit's."""
    if form == "comment":
        return f"Comment on {thread(pack).url}"  # type: ignore[union-attr]
    if form == "pr":
        return short_header.read(patch(pack)).field("Subject")
    marks = {"tile-ai/tilelang": "[BUG] "}
    if Facts(pack, receipts).last_good and template(pack, form, True).endswith("regression.md.j2"):
        marks[pack.upstream.repo] = "[REGRESSION] "
    return (marks.get(pack.upstream.repo, "") if form == "issue" else "") + pack.title
