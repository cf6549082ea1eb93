"""Bodies state what receipts hold, and nothing else."""

import json

import pytest
from toy import FIRST, HEAD, RECORD, SOURCE, THREAD, TOTAL, edited, write_tree

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import record_bytes
from reproducers.desk.text.lookups import Facts
from reproducers.desk.text.render import bodies, forms, render, rendered, title
from reproducers.evidence.receipts import newest, write
from reproducers.evidence.shelf import chain
from reproducers.record.schema import ROOT, Thread, load_packs

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
        write(toy.ran(pack), root, "toy", [], {})
    return render(pack, root)


def test_numbers_come_from_the_receipt(toy):
    text = made(toy, BODY + FIX)
    assert "total is off by 1, limit 1e-09." in text  # one line, whatever the template's
    assert "ValueError: empty is not supported" in text
    assert "### Fix\n\nDo not skip it." in text
    assert "`python pack07.py`" in text and "--lane cuda" not in text  # the toy has no such lane
    assert "| total | 1 | 1e-09 |" in text and "| first |" not in text  # numbers only


def test_a_report_has_no_fix_heading(toy):
    assert "### Fix" not in made(toy, BODY)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"total")', '"totals")', "'totals'"),
        ('measured("cpu"', 'measured("cuda"', "--lane cuda"),
        ("versions", "version", "'version'"),
        ("{% block cause %}It skips", "{% block causes %}It skips", "'cause'"),
        ("{% endblock %}\n{% block cause", "\n{% block cause", "endblock"),
    ],
)
def test_what_no_receipt_holds_is_refused(toy, old, new, named):
    made(toy, BODY)
    with pytest.raises(PatchlaneError, match=named):
        made(toy, BODY.replace(old, new, 1))


def test_without_a_receipt_nothing_is_claimed(toy):
    pack = toy.pack(toy.patch(edited(TOTAL)))
    write_tree(pack.folder, {"body.md.j2": BODY})
    with pytest.raises(PatchlaneError, match="--lane cpu"):
        render(pack, toy.root / "receipts")


ASKED = {  # what an upstream's own form asks for
    ("NVIDIA/Megatron-LM", "issue"): [
        "**Describe the bug**",
        "@NVIDIA/mcore-oncall",
        "**Steps/Code to reproduce bug**",
        "**Expected behavior**",
        "**Additional context**",
    ],
    ("NVIDIA/Megatron-LM", "pr"): [
        "- [ ] I, the PR author, have personally reviewed every line of this PR.",
        "# What does this PR do?",
        "## Issue tracking",
        "### Pre-checks",
        "- [ ] I have run the autoformatter.sh on my PR",
    ],
    ("NVIDIA/TransformerEngine", "issue"): [
        "**Describe the bug**",
        "**Environment overview**",
        "**Environment details**",
        "**Device details**",
    ],
    ("NVIDIA/TransformerEngine", "pr"): ["# Description", "- [x] Bug fix", "## Changes", "## Tests", "# Checklist:"],
    ("tile-ai/tilelang", "issue"): [
        "### What version of TileLang are you using?\n\n1.0",
        "### System information",
        "### Reproducible example code",
        "### Traceback",
        "### Expected behavior",
    ],
    ("tile-ai/tilelang", "pr"): ["### Change", "### Tests"],
    ("linkedin/Liger-Kernel", "issue"): [
        "### 🐛 Describe the bug",
        "### Reproduce",
        "### Versions\n\nEnvironment Report:",
    ],
    ("linkedin/Liger-Kernel", "pr"): ["## Summary", "## Testing Done", "- Hardware Type: CPU", "run `make checkstyle`"],
    ("state-spaces/mamba", "issue"): ["### Cause", "### To reproduce", "### Fix", "### Environment"],
}


def of(toy, repo, threads=()):
    """The toy's pack with a receipt, as one of ``repo``."""
    made(toy, BODY + FIX)
    pack = toy.pack()
    state = pack.upstream_state.model_copy(update={"threads": list(threads)})
    return pack.model_copy(
        update={"upstream": pack.upstream.model_copy(update={"repo": repo}), "upstream_state": state}
    )


@pytest.mark.parametrize(("repo", "form"), ASKED, ids=lambda value: str(value).replace("/", "_"))
def test_each_form_is_the_upstreams_own(toy, repo, form):
    text = render(of(toy, repo), toy.root / "receipts", form)
    places = [text.find(part) for part in ASKED[repo, form]]
    assert -1 not in places and places == sorted(places)
    assert "total is off by 1" in text and "Do not skip it." in text and "`python pack07.py`" in text
    assert (
        "measured on CPU (" in text
        and "[      bug] total: 1 " in text
        and "[verdict]" not in text
        and "sha256" not in text
    )
    assert '{"checks"' not in text and "\n\n\n" not in text


def test_no_pull_request_says_healthy_without_a_receipt_of_it(toy, monkeypatch):
    pack, root = of(toy, "state-spaces/mamba"), toy.root / "receipts"
    proved = render(pack, root, "pr").count("`HEALTHY`")
    monkeypatch.setattr(Facts, "fixed", False)
    assert render(pack, root, "pr").count("`HEALTHY`") == proved - 1


def test_a_regression_is_reported_as_one(toy, monkeypatch):
    monkeypatch.setattr(Facts, "last_good", "0.9")
    pack, root = of(toy, "NVIDIA/Megatron-LM"), toy.root / "receipts"
    text = render(pack, root, "issue")
    assert "**Previous performance**\n\n0.9 " in text and "- Previous Megatron-LM release: 0.9" in text
    assert title(pack, "issue", root) == "[REGRESSION] " + pack.title
    assert title(pack, "pr", root) == "sum all values"  # the commit's own


def test_what_is_a_regression():
    good = {pack.number: Facts(pack, ROOT / "receipts").last_good for pack in load_packs()}
    assert good[6] == "0.1.12" and good[9] is None  # 0.6.3 fails otherwise


def test_a_comment_begins_with_the_problem_and_its_title_names_the_thread(toy):
    near = Thread.model_validate(THREAD | {"relation": "neighbour"})
    reports = Thread.model_validate(THREAD | {"url": THREAD["url"] + "9", "title": "Sums", "relation": "reports it"})
    theirs = Thread.model_validate(THREAD | {"url": THREAD["url"].replace("toyup", "other"), "relation": "reports it"})
    pack = of(toy, "toy/toyup", [theirs, near, reports])
    text = render(pack, toy.root / "receipts", "comment")
    assert text.startswith("total is off") and reports.url not in text and "(Apache-2.0)" in text
    assert "\n\n**Cause.**\n\nIt skips" in text and "\n\n**Measured.**\n\nOn a" in text  # a list would begin there
    assert title(pack, "comment", toy.root / "receipts") == f"Comment on {reports.url}"


@pytest.mark.parametrize("form", ["pr", "comment"])
def test_a_form_that_the_pack_cannot_take(toy, form):
    pack = of(toy, "state-spaces/mamba")
    pack.patch.unlink()
    assert forms(pack) == ("issue",)
    with pytest.raises(PatchlaneError) as caught:
        render(pack, toy.root / "receipts", form)
    assert caught.value.remedy == "--as issue"


@pytest.mark.parametrize("pack", load_packs(), ids=lambda pack: pack.id)
def test_every_pack_renders(pack):
    absent = [lane for lane in pack.lanes if newest(pack, lane, ROOT / "receipts", pack.filing_pin) is None]
    if absent:
        pytest.skip(f"no receipt yet of: {', '.join(absent)}")
    texts = bodies(pack, ROOT / "receipts")
    assert "issue" in texts and ("pr" in texts) == pack.patch.is_file()
    for text in texts.values():
        assert "{{" not in text and pack.upstream.distribution in text and len(text) < 65_536


MAIN = "  main:\n    sha: " + "c" * 40 + "\n    patch: main.patch\n"
PINNED = """{% extends form %}
{% block problem %}
{% set at = measured_at("cpu") %}
Off by {{ measured("cpu", "pristine", "total") }} on {{ label() }}.
{{ at }}: {{ measured("cpu", "pristine", "total", at) }} on {{ label(at) }}.
{% endblock %}
{% block cause %}
It is of {{ pin.sha }}, {{ live.release }} {{ measured("cpu", "pristine", "total", "live") }}.
{% endblock %}
{% block evidence %}{{ host("cpu") }}.{% endblock %}
{% block fix %}Add all.{% endblock %}
"""


def pinned(toy, body=PINNED, filing=""):
    """The toy's pack with a pin main of a patch and sources of its own, where total forgets two values."""
    record = RECORD.replace("lanes:\n", MAIN + "lanes:\n", 1) + ("filing: " + filing if filing else "")
    worse = edited(("values[1:]:", "values[2:]:"))
    fixed = edited(TOTAL, FIRST)
    head = HEAD.replace("sum all", "on main: sum all")
    write_tree(toy.packs / "07_toy", {"main.patch": head + toy.patch(fixed, worse), "body.md.j2": body})
    return toy.pack(record=record), worse


def taken(toy, pack, source, **request):
    if request.get("at") == "main":
        toy.publish(source, "c" * 40, f"git {'c' * 40}")
    return write(toy.ran(pack, source, **request), toy.root / "receipts", "toy", [], {})


def test_what_is_filed_is_of_its_pin(toy):
    pack, worse = pinned(toy)
    assert pack.filing_pin == "main"
    root, link = toy.root / "receipts", "[ccccccc](https://github.com/toy/toyup/commit/" + "c" * 40 + ")"
    taken(toy, pack, SOURCE)
    with pytest.raises(PatchlaneError) as caught:
        render(pack, root)
    assert caught.value.remedy.startswith("python -m reproducers.run pack07 --at main --upstream CLONE --lane cpu")
    assert Facts(pack, root).measured_at("cpu") == "live"
    taken(toy, pack, worse, at="main")
    text = render(pack, root, "pr")
    assert f"Off by 3 on main at {link}. main: 3 on main at {link}." in text
    assert "It is of " + "c" * 40 + ", 1.0 1." in text and "`python pack07.py --tree toyup`" in text
    assert title(pack, "pr", root) == "on main: sum all values"
    live = pack.model_copy(update={"filing": pack.filing.model_copy(update={"pin": "live"})})
    assert title(live, "pr", root) == "sum all values" and "Off by 1 on 1.0. live: 1 on 1.0." in render(
        live, root, "issue"
    )


def test_the_minimal_code_is_quoted(toy):
    pack = toy.pack()
    write_tree(pack.folder, {"body.md.j2": BODY + FIX})
    taken(toy, pack, SOURCE)
    for form in forms(pack):
        text = render(pack, toy.root / "receipts", form)
        assert "````python\nfrom toyup.core import total\n\nassert total([1, 2, 3]) == 6\n````" in text


def test_the_environment_says_os_cuda_and_installation_where_known(toy, believed):
    pack = toy.pack()
    path = taken(toy, pack, SOURCE)
    root = toy.root / "receipts"
    now = Facts(pack, root).environment
    assert now["OS"] and {"wheel", "toyup", "1.0"} <= set(now["toyup installed from"].split())
    assert list(now)[:2] == ["OS", "Python"]
    body = json.loads(path.read_text())
    details = body["predicate"]["patchlane"]
    del details["host"]["platform"]
    details["versions"]["cuda"] = "13.0"
    path.write_bytes(record_bytes(body))
    old = Facts(pack, root).environment
    assert "OS" not in old and old["CUDA"] == "13.0 (torch's)"


def test_a_traceback_is_quoted_whole(toy):
    made(toy, BODY)
    (shown,) = Facts(toy.pack(), toy.root / "receipts").raised
    lines = shown.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: empty is not supported"


CALLS = [
    "cycler.__init__.__globals__.os.popen('touch RAN').read()",
    "''.__class__.__mro__",
    "measured.__globals__",
    "pack.folder.joinpath('RAN').write_text('x')",
    "pack.folder.joinpath('pack.yaml').read_text()",
    "pack.reproducer.unlink()",
    "pack.parse_file(pack.folder.joinpath('pack.yaml'))",
    "pack.parse_raw('', content_type='pickle', allow_pickle=True)",
    "pack.model_construct()",
    "facts.pack.folder.rmdir()",
    "'{0.__class__}'.format(pack)",
    "lipsum.__globals__",
    "self.__init__.__globals__",
    "pack.nothing.more",
    "versions('cpu').update(a=1)",
    "[].append(1)",
]


@pytest.mark.parametrize("call", CALLS)
def test_a_body_runs_nothing_and_touches_no_file(toy, monkeypatch, call):
    monkeypatch.chdir(toy.root)
    made(toy, BODY)
    before = {path: path.read_bytes() for path in toy.packs.rglob("*") if path.is_file() and path.name != "body.md.j2"}
    with pytest.raises(PatchlaneError, match=r"body\.md\.j2"):
        made(toy, BODY.replace("It skips", "{{ " + call + " }} It skips"))
    after = {path: path.read_bytes() for path in toy.packs.rglob("*") if path.is_file() and path.name != "body.md.j2"}
    assert before == after and not list(toy.root.rglob("RAN"))


RAISES = """
from hypothesis import strategies
from reproducers import probe

EMPTY = probe.Signature("ValueError", "^empty is not", "toyup/core.py")


def minimal():
    pass


def reproduce(p):
    core = p.upstream("toyup.core")

    def off(n):
        try:
            core.first([])
        except ValueError:
            return 1  # wholly off
        return 0

    p.attempt("first", lambda: core.first([]), EMPTY)
    p.drawn("first, drawn", off, 0.5, space={"n": strategies.integers(1, 9)}, count=3, reference="none", bug_above=0.9)


if __name__ == "__main__":
    probe.main(reproduce, pack=7, package="toyup", minimal=minimal)
"""


@pytest.mark.parametrize(("more", "shown"), [("", "raised ValueError"), ("TOTAL", "1")])
def test_a_one_that_stands_for_an_exception_is_told_as_the_exception(toy, more, shown):
    """Not where another check measured the bug: then a drawn 1 may be a measurement."""
    measured = '    p.error("total", abs(core.total([1, 2, 3]) - 6), 1e-9, reference="6", bug_above=0.5)\n\n\nif __name'
    reproducer = RAISES.replace("\n\nif __name", measured) if more else RAISES
    pack = toy.pack(reproducer=reproducer)
    write_tree(pack.folder, {"body.md.j2": BODY.replace('"total"', '"first, drawn"')})
    write(toy.ran(pack), toy.root / "receipts", "toy", [], {})
    text = render(pack, toy.root / "receipts")
    assert f"total is off by {shown}, limit 0.5." in text and f"| first, drawn | {shown} | 0.5 |" in text
    folded = text[text.index("<details>") :]
    assert "ValueError: empty is not supported" in folded and ("first, drawn: 1" in folded) is bool(more)


@pytest.mark.parametrize("pack", load_packs(), ids=lambda pack: pack.id)
def test_what_is_folded_in_failed_without_the_patch_and_every_attached_log_is_named(pack):
    for form in forms(pack):
        text, facts = rendered(pack, ROOT / "receipts", form)
        folded = text[text.index("<details>") :]
        lines = folded[folded.index("````text\n") : folded.rindex("````")].splitlines()[1:]
        assert lines and not [line for line in lines if line.startswith(("[patched]", "[   passed]", "[  healthy]"))]
        assert [name for name in facts.logs if f"`{name}`" not in folded] == []


def test_a_receipt_of_another_lane_or_pin_that_is_quoted_has_its_log_attached():
    packs = {pack.number: pack for pack in load_packs()}
    texts = {number: rendered(packs[number], ROOT / "receipts")[1].logs for number in (5, 33, 39)}
    assert list(texts[5]) == ["pack05.log"] and list(texts[39]) == ["pack39.log", "pack39-cpu.log"]
    assert next(iter(texts[33])) == "pack33.log" and "pack33-cpu-0.19.0.log" in texts[33]
    assert all(log.count(b"CPU RNG state changed") < 10 for log in texts[39].values())


def test_what_is_expected_stands_under_a_heading_or_a_word_that_says_so():
    forms = [path for path in (ROOT / "templates" / "forms").glob("*/*.j2") if "block expected" in path.read_text()]
    assert len(forms) > 4
    for path in forms:
        before, _, after = path.read_text().partition("{% block expected")
        heading = [line for line in before.splitlines() if line.startswith(("#", "**"))][-1]
        assert "expected" in heading.lower() or "\nExpected: {{ expected" in after, path
