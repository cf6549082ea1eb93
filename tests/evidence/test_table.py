"""A title in the table of packs is text, whatever it holds; today's titles stay as they are."""

import datetime
import re

import pytest

from reproducers.evidence import manifest, table
from reproducers.record.entry import Reach
from reproducers.record.schema import ROOT, load_packs


@pytest.mark.parametrize(
    "title",
    [
        "![x](https://evil.invalid/x.png)",
        "<img src=https://evil.invalid/x.png>",
        "a <!-- | b",
        "&lt;script&gt; &#60;",
        "`a` **b** _c_ [d](e)",
        "\x1b[2J\u202egnp",
        "a\\",
    ],
)
def test_a_title_is_text(toy, title):
    cmarkgfm = pytest.importorskip("cmarkgfm")
    pack = toy.pack().model_copy(update={"title": title})
    text = table.render([pack], manifest.content_of([pack], toy.root / "receipts"))
    page = cmarkgfm.github_flavored_markdown_to_html(text)
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert len(cells) == 13 and "<img" not in page and not set("\x1b\u202e") & set(page)
    assert set(re.findall(r"<(\w+)", cells[2])) <= {"a"}, "an address is linked, and loads nothing"


def test_todays_titles_stay_as_they_are():
    page = (ROOT / "packs/README.md").read_text()
    assert all(f"| {pack.title.replace('|', chr(92) + '|')} |" in page for pack in load_packs())


def test_the_column_says_where_training_runs_the_hunks(toy):
    pack, day = toy.pack(), datetime.date(2026, 11, 28)
    content = manifest.content_of([pack], toy.root / "receipts")
    ran = Reach(hunks=["a hunk 1", "a hunk 2"], where="by default", newest=day, run="x")
    rest = [Reach(hunks=["a hunk 3"], where="nowhere", why="no such GPU"), Reach(hunks=["a hunk 4"], where="nowhere")]

    def cell(found):
        page = table.render([pack], content.model_copy(update={"training": {"pack07": found}}))
        return page.splitlines()[-1].split(" | ")[-2]

    assert cell({}) == "–"
    whole = {"fix.patch": [ran, *rest]}
    assert cell(whole) == "2 of 4 (2026-11-28): 2 by default, 1 cannot, 1 nowhere"
    two = {"fix.patch": [ran], "dev.patch": rest}
    assert cell(two) == "fix.patch: 2 of 2 (2026-11-28): 2 by default"
