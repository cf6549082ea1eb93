"""The table of a sweep, the range that it shows, and what it contradicts."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from patchlane.base.exits import Exit
from patchlane.base.wording import short
from reproducers.record.schema import Pack
from reproducers.studies.versions.answers import WORDS, Answer, Word, affected
from reproducers.trial.experiment import Request, expected
from reproducers.trial.screen import cut, width

COLOURS = {Word.BUG: "red", Word.HEALTHY: "green", Word.ABSENT: "cyan", Word.CANNOT: "yellow"}
BESIDE = 56  # characters of a row beside the reason


def begun(tree: str, repeats: int, out: Console) -> None:
    """A tree that is to run now, which takes longer than a person waits without a word."""
    out.print(f"  {short(tree):14} [dim]runs{f' {repeats} times' if repeats > 1 else ''}[/]")


def ended(line: str, out: Console) -> None:
    """The end of one arm, of all that it printed: with repeats several come before the answer."""
    if line.startswith("-> "):
        out.print(f"[dim]    {escape(cut(line, width(out) - 4))}[/]")


def line(answer: Answer, out: Console) -> None:
    """One answer as it is known, on one line."""
    told = "[dim](a receipt says so)[/] " if answer.kept else ""
    word = f"[{COLOURS[answer.word]}]{answer.word:14}[/]"
    out.print(f"  {short(answer.tree):14} {word} {told}{escape(cut(answer.why, width(out) - BESIDE))}")


def table(pack: Pack, answers: list[Answer], out: Console) -> None:
    """The closing table of a pack and its affected range."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"{pack.id} {pack.upstream.distribution}", title_justify="left"
    )
    for column in ("tree", "answer", "receipt"):
        table.add_column(column, no_wrap=True)
    for answer in answers:
        word = f"[{COLOURS[answer.word]}]{answer.word}[/]"
        table.add_row(short(answer.tree), word, escape(answer.receipt_name or "none"))
    out.print(table)
    for row in affected(answers):
        out.print(f"{pack.id} affected: {escape(row)}")


def contradictions(pack: Pack, lane: str, answers: list[Answer]) -> list[str]:
    """What answers say otherwise than the pack does of its pins and of releases after its fixed one."""
    rows = []
    for answer in answers:
        verdicts = [verdict for verdict, word in WORDS.items() if word is answer.word]
        at = pack.pin_name(answer.tree)
        request = Request(at or answer.tree, lane, "pristine")
        wanted = expected(pack, request)
        claimed = at is not None or wanted == {verdict for verdict, word in WORDS.items() if word is Word.HEALTHY}
        if verdicts and claimed and not wanted & set(verdicts):
            said = " or ".join(sorted(WORDS[verdict] for verdict in wanted if verdict in WORDS))
            rows.append(f"{pack.id} at {short(answer.tree)}: {answer.word}, and pack.yaml says {said}")
    return rows


def proposals(pack: Pack, answers: list[Answer]) -> list[str]:
    """Changes of pack.yaml that answers in order speak for, as text; whoever reads them decides."""
    live, fixed = pack.pins["live"], pack.pins.get("fixed")
    tried = [answer for answer in answers if answer.word in (Word.BUG, Word.HEALTHY) and len(answer.tree) != 40]
    trees = [answer.tree for answer in tried]
    if not tried or live.release not in trees:
        return []
    after, rows = tried[trees.index(str(live.release)) + 1 :], []
    healthy = [answer.tree for answer in after if answer.word is Word.HEALTHY]
    broken = [answer.tree for answer in after if answer.word is Word.BUG]
    since = next((answer.tree for answer in after if answer.word is Word.HEALTHY and not _later(after, answer)), None)
    if since and (fixed is None or fixed.release is None):
        rows.append(f"{pack.id}: set pins.fixed to release {since}: it and each later one tried is healthy")
    elif since and fixed and fixed.release in trees and fixed.release != since:
        rows.append(f"{pack.id}: pins.fixed says {fixed.release}, receipts say {since}")
    if healthy and broken and trees.index(broken[-1]) > trees.index(healthy[0]):
        rows.append(f"{pack.id}: the bug is back in {broken[-1]} after {healthy[0]} was healthy")
    if broken and after[-1].tree == broken[-1] and fixed is None:
        rows.append(f"{pack.id}: still there in {broken[-1]}; pins.live is {live.release}")
    return rows


def _later(after: list[Answer], answer: Answer) -> bool:
    """Whether a later release shows the bug."""
    return any(other.word is Word.BUG for other in after[after.index(answer) + 1 :])


def exit_code(answers: list[Answer], contradicted: list[str]) -> Exit:
    """1 where an answer contradicts a pack, 77 where no tree could be tested."""
    if contradicted:
        return Exit.CONTRADICTED
    return Exit.CANNOT_TEST if all(answer.word is Word.CANNOT for answer in answers) else Exit.OK
