"""The result of a bisection as Markdown to paste."""

from __future__ import annotations

import shlex
from pathlib import Path

from reproducers.base.wording import count, short
from reproducers.record.goal import Goal
from reproducers.record.schema import Pack
from reproducers.studies.versions import commits
from reproducers.studies.versions.answers import Answer
from reproducers.studies.versions.asking import Asker
from reproducers.studies.versions.bisecting import Boundary
from reproducers.trial.screen import cut

ENDS = {Goal.INTRODUCED: ("last good", "first bad"), Goal.FIXED: ("last bad", "first good")}

WHY = 200  # characters of a reason in the block


def markdown(asker: Asker, boundary: Boundary, command: list[str]) -> str:
    """First bad or first good tree, its neighbour, what was straddled, the commands and the receipts."""
    pack, clone = asker.pack, asker.clone
    before, after = ENDS[boundary.goal]
    sure = not boundary.straddled
    new, old = short(boundary.new.tree), short(boundary.old.tree)
    place = f"in `{new}`" if sure else f"after `{old}`, at the latest in `{new}`"
    lines = [
        f"### {pack.id}: {pack.title}",
        "",
        f"**{boundary.goal.capitalize()} {place}** ({pack.upstream.repo})"
        + (f", by the check `{asker.check}` alone" if asker.check else ""),
        "",
        f"- {after}{'' if sure else ' that can be tested'}: {_tree(pack, clone, boundary.new)}",
        f"- {before}: {_tree(pack, clone, boundary.old)}",
    ]
    for answer in boundary.straddled:
        lines.append(f"- between them, not testable: {_tree(pack, clone, answer)}")
    if boundary.beyond:
        lines.append(f"- after it, tried: {_tree(pack, clone, boundary.beyond)}")
    agreed = min(boundary.old.repeats, boundary.new.repeats)
    tried = f"{count(len(boundary.tried), 'tree')} tried, both ends first"
    if asker.build:
        lines.append(f"- each commit was built first, by a command that only added files: `{asker.told(asker.build)}`")
    lines += [f"- {tried}; each side of the boundary ran {count(agreed, 'time')}, with the same answer", ""]
    lines += ["Commands:", "", *(f"    {line}" for line in _commands(asker, boundary, command)), "", "Receipts:", ""]
    names = dict.fromkeys(a.receipt_name for a in (boundary.old, boundary.new, *boundary.tried) if a.receipt)
    return "\n".join([*lines, *(f"- `{name}`" for name in names)]) + "\n"


def _tree(pack: Pack, clone: Path | None, answer: Answer) -> str:
    what = f"`{answer.tree}`" if clone else f"{pack.upstream.distribution} {answer.tree}"
    about = f" ({commits.title(clone, answer.tree)})" if clone else ""
    return f"{what}{about}: {answer.word}: {cut(answer.why, WHY)}"


def _commands(asker: Asker, boundary: Boundary, command: list[str]) -> list[str]:
    """The bisection itself and the two runs of the boundary, a clone as CLONE, what builds it as COMMAND."""
    runs = [["run", *asker.command(answer.tree, answer.repeats)] for answer in (boundary.old, boundary.new)]
    known = {str(asker.clone): "CLONE"} if asker.clone else {}
    known |= {asker.build: "COMMAND"} if asker.build else {}
    return [
        "python -m reproducers." + shlex.join(known.get(word) or asker.told(word) for word in words)
        for words in (["bisect", *command], *runs)
    ]
