"""A title in the table of packs is text, whatever it holds; today's titles stay as they are."""

import re

import pytest

from reproducers.evidence import manifest, table
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
    entry = manifest.entry_of(pack, toy.root / "receipts")
    text = table.render([pack], {"pack07": entry})
    page = cmarkgfm.github_flavored_markdown_to_html(text)
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert len(cells) == 11 and "<img" not in page and not set("\x1b\u202e") & set(page)
    assert set(re.findall(r"<(\w+)", cells[2])) <= {"a"}, "an address is linked, and loads nothing"


def test_todays_titles_stay_as_they_are():
    page = (ROOT / "packs/README.md").read_text()
    assert all(f"| {pack.title.replace('|', chr(92) + '|')} |" in page for pack in load_packs())
