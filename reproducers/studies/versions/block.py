"""The result of a bisection as Markdown to paste."""

from __future__ import annotations

import shlex
from pathlib import Path

from patchlane.base.wording import count, short
from reproducers.evidence import shelf
from reproducers.record.goal import Goal
from reproducers.record.schema import Pack
from reproducers.studies.versions import commits
from reproducers.studies.versions.answers import Answer
from reproducers.studies.versions.asking import Asker
from reproducers.studies.versions.bisecting import Boundary

ENDS = {Goal.INTRODUCED: ("last good", "first bad"), Goal.FIXED: ("last bad", "first good")}

WHY = 200  # characters of a reason in the block
OWN = {"--receipts": True, "--host": True, "-v": False, "--verbose": False, "--again": False}  # {option: has a value}


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
    lines += ["Commands:", "", *(f"    {line}" for line in _commands(asker, boundary, command))]
    shared = [a for a in (boundary.old, boundary.new, *boundary.tried) if a.receipt and _committed(a.receipt)]
    names = dict.fromkeys(a.receipt_name for a in shared)
    lines += ["", "Receipts:", "", *(f"- `{name}`" for name in names)] if names else []
    return "\n".join(lines) + "\n"


def _committed(receipt: Path) -> bool:
    """Whether others have it: it is among those of the repository, not of this machine alone."""
    return receipt.resolve().is_relative_to(shelf.COMMITTED)


def _tree(pack: Pack, clone: Path | None, answer: Answer) -> str:
    what = f"`{answer.tree}`" if clone else f"{pack.upstream.distribution} {answer.tree}"
    about = f" ({commits.title(clone, answer.tree)})" if clone else ""
    return f"{what}{about}: {answer.word}: {whole(answer.why)}"


def whole(why: str) -> str:
    """A reason in whole parts: of a long list of checks the first ones, and how many more there are."""
    parts = (why.splitlines() or [""])[0].split("; ")
    kept = [part for n, part in enumerate(parts) if n == 0 or len("; ".join(parts[: n + 1])) <= WHY]
    return "; ".join(kept) + (f"; and {len(parts) - len(kept)} more" if len(kept) < len(parts) else "")


def _commands(asker: Asker, boundary: Boundary, command: list[str]) -> list[str]:
    """The bisection and the two runs of the boundary, as anybody runs them; a clone is made first, as CLONE."""
    runs = [["run", *asker.command(answer.tree, answer.repeats)] for answer in (boundary.old, boundary.new)]
    known = {str(asker.clone): "CLONE"} if asker.clone else {}
    known |= {asker.build: "COMMAND"} if asker.build and asker.told(asker.build) != asker.build else {}
    first = [f"git clone https://github.com/{asker.pack.upstream.repo} CLONE"] if asker.clone else []
    return first + [
        "python -m reproducers." + shlex.join(known.get(word) or asker.told(word) for word in words)
        for words in (["bisect", *_public(command)], *runs)
    ]


def _public(command: list[str]) -> list[str]:
    """The arguments without those of this machine: where receipts go, its alias, what is shown."""
    words = [part for word in command for part in (word.split("=", 1) if word.startswith("--") else [word])]
    kept, skip = list[str](), False
    for word in words:
        if skip or word in OWN:
            skip = not skip and OWN.get(word, False)
        else:
            kept.append(word)
    return kept
