"""Bodies state what receipts hold, and nothing else."""

import pytest
from toy import TOTAL, edited, write_tree

from reproducers.errors import PatchlaneError
from reproducers.receipts import chain, newest, write
from reproducers.render import render
from reproducers.schema import ROOT, load_packs

BODY = """{% extends form %}
{% block problem %}total is off by {{ measured("cpu", "pristine", "total") }},
limit {{ limit("cpu", "patched", "total") }}.{% endblock %}
{% block cause %}It skips the first value (python {{ versions("cpu").python }}).{% endblock %}
{% block evidence %}On a {{ host("cpu") }}: {{ measured("cpu", "pristine", "first") }}.{% endblock %}
"""
FIX = "{% block fix %}Do not skip it.{% endblock %}"


def made(toy, body):
    pack = toy.pack()
    write_tree(pack.folder, {"body.md.j2": body})
    root = toy.root / "receipts"
    if not chain(root / "07"):
        write(toy.run(pack), root, "toy", [], {})
    return render(pack, root)


def test_numbers_come_from_the_receipt(toy):
    text = made(toy, BODY + FIX)
    assert "total is off by 1,\nlimit 1e-09." in text
    assert "ValueError: empty is not supported" in text
    assert "### Fix\n\nDo not skip it." in text
    assert "`python pack07.py` with the attached file, on toyup 1.0 (" + "a" * 40 + ")" in text


def test_a_report_has_no_fix_heading(toy):
    assert "### Fix" not in made(toy, BODY)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"total")', '"totals")', "has no check 'totals'"),
        ('measured("cpu"', 'measured("cuda"', "has no receipt of the cuda lane"),
        ("versions", "version", "'version' is undefined"),
        ("{% block cause %}It skips", "{% block causes %}It skips", "Required block 'cause' not found"),
        ("{% endblock %}\n{% block cause", "\n{% block cause", "endblock"),
    ],
)
def test_what_no_receipt_holds_is_refused(toy, old, new, said):
    made(toy, BODY)
    with pytest.raises(PatchlaneError, match=said):
        made(toy, BODY.replace(old, new, 1))


def test_without_a_receipt_nothing_is_claimed(toy):
    pack = toy.pack(toy.patch(edited(TOTAL)))
    write_tree(pack.folder, {"body.md.j2": BODY})
    with pytest.raises(PatchlaneError, match="has no receipt of the cpu lane"):
        render(pack, toy.root / "receipts")


@pytest.mark.parametrize("pack", load_packs(), ids=lambda pack: pack.id)
def test_every_pack_renders(pack):
    absent = [lane for lane in pack.lanes if newest(pack, lane, ROOT / "receipts") is None]
    if absent:
        pytest.skip(f"no receipt yet of: {', '.join(absent)}")
    text = render(pack, ROOT / "receipts")
    assert pack.title in text and "{{" not in text
