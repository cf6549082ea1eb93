"""The report page: says what receipts hold, stands alone, runs nothing, and can be read anywhere."""

import functools
import html
import itertools
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from made import arm, check, details
from toy import REPRODUCER, THREAD, write_tree

from patchlane.base.errors import PatchlaneError
from patchlane.base.wording import printable
from reproducers.base.glossary import STATES
from reproducers.desk.attachment import export
from reproducers.desk.page import charts, publish
from reproducers.desk.page.markup import highlight, markdown
from reproducers.desk.page.pages import pages
from reproducers.desk.page.standings import ANSWERS, RELEASE
from reproducers.desk.page.training import training_runs
from reproducers.desk.page.views import affected, natural, standing
from reproducers.evidence import manifest
from reproducers.evidence.receipts import newest, newest_of, read, write
from reproducers.kept import archive, xz
from reproducers.record.schema import ROOT, UpstreamState, load_packs

html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed: pip install -e .[dev]")

HTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = "<script>alert(1)</script>"
LOADS = {"script", "iframe", "object", "embed", "video", "audio", "source", "form", "style"}


@pytest.fixture(scope="module")
def real():
    return pages(load_packs(), ROOT / "receipts")


@pytest.fixture
def hostile(toy):
    """A pack whose checks, notes and body try to bring markup in."""
    line = f'    p.note("<b>note</b>", "{HOSTILE}\\x1b[31m")\n'
    pack = toy.pack(reproducer=REPRODUCER.replace("    core = p.upstream", line + "    core = p.upstream"))
    note = f'# Pack\n\n{HOSTILE}\n\n<a href="javascript:x()">x</a> ![p](https://a.org/p.png)\n<img src=x onerror=x()>\n'
    write_tree(pack.folder, {"notes.md": note, "body.md.j2": note})
    root = toy.root / "receipts"
    write(toy.run(pack), root, "toy", [], {})
    return pages([pack], root)


@functools.cache
def parsed(data):
    """The document, refused where it is not valid HTML."""
    return html5lib.HTMLParser(strict=True).parse(data.decode())


def named(files):
    return {name: parsed(data) for name, data in files.items() if name.endswith(".html")}


def texts(document):
    return " ".join("".join(document.itertext()).split())


def words(page):
    """The text of a page, or of a piece of it, without a parser: all that a page shows is escaped."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


def faults(files, names=None):
    """Every link to a file or id that the site does not have, and everything that a browser would load or run.

    ``names``: the pages to look at, all by default.
    """
    broken = []

    def ids(name):
        return [e.get("id") for e in parsed(files[name]).iter() if e.get("id")] if name.endswith(".html") else []

    for name in names or [name for name in files if name.endswith(".html")]:
        document, own = parsed(files[name]), ids(name)
        broken += [f"{name}: id {i} twice" for i in own if own.count(i) > 1]
        for element in document.iter():
            tag = str(element.tag).removeprefix(HTML)
            if tag in LOADS or element.get("style") or any(key.startswith("on") for key in element.attrib):
                broken.append(f"{name}: {tag}")
            for key in ("href", "src", "srcset", "action"):
                value = element.get(key)
                if value is None or (tag == "a" and value.startswith("https://")) or value == "data:,":
                    continue
                path, fragment = urldefrag(value)
                target = os.path.normpath(Path(name).parent / unquote(path)) if path else name
                if target not in files or (fragment and fragment not in (own if target == name else ids(target))):
                    broken.append(f"{name}: {value}")
    return broken


@pytest.mark.site
def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(real):
    assert faults(real) == []
    assert b"url(" not in real["site.css"] and b"@import" not in real["site.css"]


@pytest.mark.parametrize(
    "planted", ['<a href="gone.html">x</a>', '<a href="#gone">x</a>', '<img src="https://a.org/x.png" alt="x">']
)
def test_a_planted_fault_is_found(real, planted):
    page = real["index.html"].replace(b"</main>", planted.encode() + b"</main>")
    assert len(faults({**real, "index.html": page}, ["index.html"])) == 1


@pytest.mark.site
def test_the_same_input_gives_the_same_bytes(real):
    assert pages(load_packs(), ROOT / "receipts") == real


KINDS = {pack.kind: f"packs/{pack.number:02d}.html" for pack in load_packs()}
RUN = "training/1xh200_quarter_20261121.html"
SAMPLE = ["index.html", "releases.html", "training.html", RUN, "hosts.html", *KINDS.values()]  # of each template, kind


@pytest.mark.parametrize("names", [SAMPLE, pytest.param(None, marks=pytest.mark.site)], ids=["sample", "all"])
def test_headings_are_in_order_and_landmarks_there(real, names):
    for name, document in named({name: real[name] for name in names or real}).items():
        levels = [int(e.tag[-1]) for e in document.iter() if e.tag in {f"{HTML}h{n}" for n in range(1, 7)}]
        assert levels[0] == 1 and levels.count(1) == 1, name
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (name, levels)
        assert document.get("lang") == "en"
        for tag in ("header", "main", "footer", "nav"):
            assert document.find(f".//{HTML}{tag}") is not None, (name, tag)
        assert all(th.get("scope") for th in document.iter(f"{HTML}th")), name
        assert all(
            t.find(f"{HTML}caption") is not None for t in document.iter(f"{HTML}table") if not prose(document, t)
        )


def prose(document, table):
    """Whether the table is part of a Markdown text, which has no captions."""
    boxes = [e for e in document.iter(f"{HTML}div") if e.get("class") == "prose"]
    return any(table in list(box.iter()) for box in boxes)


def test_a_page_for_every_pack_and_host(real):
    overview = texts(parsed(real["index.html"]))
    for pack in load_packs():
        assert pack.title in overview
        page = words(real[f"packs/{pack.number:02d}.html"].decode())
        assert " ".join(pack.claim.split()) in page and " ".join(pack.filing.reason.split()) in page
        for path in newest_of(pack, ROOT / "receipts").values():
            copy, log = f"receipts/{path.parent.name}/{path.name}", path.with_suffix(".log")
            assert real[copy] == archive.data(path)
            assert lzma.decompress(real[copy.removesuffix(".json") + ".log.xz"]) == archive.data(log)
    aliases = {path.name.split("_")[1] for path in ROOT.glob("receipts/[0-9]*/[0-9]*.json")}
    assert aliases <= {e.get("id") for e in parsed(real["hosts.html"]).iter(f"{HTML}h2")}


def test_hostile_text_stays_text(hostile):
    assert faults(hostile) == []
    page = hostile["packs/07.html"].decode()
    assert "<script" not in page and "<img" not in page
    assert HOSTILE in texts(parsed(hostile["packs/07.html"])) and "<b>note</b>" in texts(
        parsed(hostile["packs/07.html"])
    )
    assert "\u241b[31m" in page


def test_a_body_that_cannot_be_rendered_says_why(toy):
    pack = toy.pack()
    root = toy.root / "receipts"
    write(toy.run(pack), root, "toy", [], {})
    write_tree(pack.folder, {"body.md.j2": '{% extends form %}{% block problem %}{{ measured("cuda", "x", "y") }}'})
    files = pages([pack], root)
    page = texts(parsed(files["packs/07.html"]))
    assert "07_toy/body.md.j2" in page and "packs/07/pack07.py" not in files and "PEP 723" in page


def test_altered_receipts_are_not_reported(toy):
    pack = toy.pack()
    root = toy.root / "receipts"
    with pytest.raises(PatchlaneError) as empty:
        pages([pack], root)
    assert empty.value.remedy == "python -m reproducers.run pack05"
    path = write(toy.run(pack), root, "toy", [], {})
    path.write_text(path.read_text().replace("REPRODUCED_AND_FIXED", "REPRODUCED"))
    with pytest.raises(PatchlaneError, match=path.name):
        pages([pack], root)


def test_characters_that_html_forbids_are_shown():
    assert printable("a\x1b\x00\n\tb\ud800\ufffe") == "a\u241b\u2400\n\tb\ufffd\ufffd"


def test_markdown_as_github_reads_it():
    text = "# T\n\n### U\n\n| a | |\n|---|---|\n| ~~b~~ | core.py |\n\nhttps://example.org/x [n](../notes.md) `<b>`\n\n"
    text += "<details><summary>s</summary>\n\n```diff\n+x\n```\n</details>\n"
    page = markdown(text, 3)
    assert "<h3>T</h3>" in page and "<h4>U</h4>" in page
    assert (
        '<th scope="col">a</th>' in page and "<td></td>" in page and "<s>b</s>" in page and "<td>core.py</td>" in page
    )
    assert 'href="https://example.org/x"' in page and page.count("href=") == 1
    assert "<code>&lt;b&gt;</code>" in page
    assert "<details><summary>s</summary>" in page and '<span class="gi">+x</span>' in page


def test_patches_are_highlighted_and_escaped():
    assert highlight("+a < b\n-c\n", "diff") == '<span class="gi">+a &lt; b</span>\n<span class="gd">-c</span>\n'
    assert highlight("<b>", "no such language") == "&lt;b&gt;"


def drawn(pristine, patched, bug_above=0.5):
    arms = [[arm("bug", check("e", measured=x, limit=1e-3, bug_above=bug_above))] for x in (pristine, patched)]
    return charts.charts(details(*arms))[0]


def test_marks_lie_on_their_side_of_the_limit():
    chart = drawn(1.0, 1e-5)
    pristine, patched = chart.marks
    assert chart.axis == "log"
    assert patched.x < chart.limit.x < chart.bug.x < pristine.x == charts.RIGHT
    decades = (chart.limit.x - patched.x) / (pristine.x - patched.x)
    assert decades == pytest.approx(2 / 5, abs=1e-3)


def test_zero_has_a_place_of_its_own_on_a_log_axis():
    chart = drawn(1.0, 0.0)
    assert chart.marks[1].x == charts.LEFT
    assert chart.limit.x == charts.LEFT + charts.ZERO_GAP


def test_near_numbers_and_negative_ones_lie_on_a_linear_axis():
    near = drawn(2e-3, 1e-3, None)
    assert near.axis == "linear" and near.bug is None and near.marks[1].x == near.limit.x == 160.0
    assert drawn(-1.0, 1e-5).axis == "linear"


def test_a_number_that_is_not_finite_is_told_and_not_drawn():
    assert drawn("nan", 1e-5).marks[0].x is None
    assert drawn("inf", 1e-5).marks[0].x is None
    returned = [arm("bug", check("a", measured="returned", limit="no exception"))]
    assert charts.charts(details(returned, [arm("healthy")])) == []
    only = charts.charts(details(returned, [arm("healthy", check("b", measured=0, limit=0))]))[0]
    assert only.absent == ["pristine"] and only.marks[0].x == only.limit.x == charts.LEFT


def test_only_numbers_of_receipts_are_drawn(real):
    """Every number of every chart of the site is one of its pack's newest receipts."""
    drawn = set()
    for pack in load_packs():
        allowed = set()
        for path in filter(None, (newest(pack, lane, ROOT / "receipts") for lane in pack.lanes)):
            for _, kept in read(path).every_check():
                allowed |= {str(kept.measured), str(kept.limit), str(kept.bug_above)}
                allowed.add(str(float(kept.limit)) if kept.numeric else "")
        found = re.findall(r"<data\b([^>]*)>", real[f"packs/{pack.number:02d}.html"].decode())
        shown = {html.unescape(value[1]) for data in found if (value := re.search(r'value="([^"]*)"', data))}
        drawn |= shown
        assert shown <= allowed, pack.id
    assert len(drawn) > 100


def test_training_receipts_keep_to_their_folder(tmp_path):
    write_tree(tmp_path, {"run/receipt.json": '{"summary": {"a": {"b": 1}, "c": []}, "files": {"n": "", "m": ""}}'})
    write_tree(tmp_path, {"x": "", "run/m": ""})
    (run,) = training_runs(tmp_path)
    assert run.rows == [("a: b", "1"), ("c", "none")]
    assert (run.title, run.size, run.gpus, run.short) == ("run", "", None, True)
    assert [path.name for path in run.files] == ["receipt.json", "m"]
    write_tree(tmp_path, {"run/receipt.json": '{"summary": {}, "files": {"../x": ""}}'})
    with pytest.raises(PatchlaneError, match=r"\.\./x"):
        training_runs(tmp_path)
    write_tree(tmp_path, {"run/receipt.json": "{}"})
    with pytest.raises(PatchlaneError, match=r"run/receipt\.json"):
        training_runs(tmp_path)


def test_a_training_run_has_words_and_units(tmp_path):
    summary = {
        "steps": 230,
        "tokens_per_s_per_gpu": 21258.7,
        "mfu": 0.2523,
        "peaks_gib": [110.857, 9.91],
        "resumed_at": [],
    }
    setup = {"size": {"name": "wide"}, "ranks": 4, "started": "2026-11-22T11:12:08+00:00"}
    for name, speed in (("slow", 1.0), ("fast", 21258.7), ("without", None)):
        receipt = {"summary": summary | {"tokens_per_s_per_gpu": speed}, "files": {"run.json": ""}}
        write_tree(tmp_path, {f"{name}/receipt.json": json.dumps(receipt), f"{name}/run.json": json.dumps(setup)})
    xz.pack(tmp_path / "fast" / "run.json")
    runs = training_runs(tmp_path)
    assert [run.name for run in runs] == ["fast", "slow", "without"]
    assert runs[0].title == "wide on 4 GPUs, 230 steps, 2026-11-22" and not runs[0].short
    fields = ("tokens_per_s_per_gpu", "mfu", "peaks_gib", "resumed_at", "valid_loss")
    assert [runs[0].formatted(name) for name in fields] == ["21,259", "25.2%", "110.9, 9.9", "none", "–"]
    assert runs[2].formatted("tokens_per_s_per_gpu") == "–"


def test_a_run_is_drawn_from_its_records(tmp_path):
    """Steps that are not finite are left out, the later record of a step counts, and packed records are read."""
    losses = [(1, 4.0), (2, 2.0), (3, "NaN"), (4, 1.0), (5, 3.0), (2, 3.0)]
    rows = [{"step": step, "kind": "train", "loss": loss, "tokens_per_s_per_gpu": 7} for step, loss in losses]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in [{"step": 5, "kind": "valid"}, *rows])
    receipt = {"summary": {}, "files": {"metrics.jsonl": ""}}
    write_tree(tmp_path, {"x/receipt.json": json.dumps(receipt), "x/metrics.jsonl": text})
    (run,) = training_runs(tmp_path)
    loss, speed = run.curves
    assert loss.points == "10.0,18.0 85.0,31.3 235.0,58.0 310.0,31.3"
    assert (loss.least, loss.greatest, loss.first, loss.last) == (1.0, 4.0, 1, 5) and speed.least == speed.greatest == 7
    xz.pack(tmp_path / "x" / "metrics.jsonl")
    (packed,) = training_runs(tmp_path)
    assert packed.curves == run.curves and [path.name for path in packed.files] == ["receipt.json", "metrics.jsonl.xz"]
    assert charts.curve("x", [(1, 2.0)]) is None
    assert len(charts.curve("x", [(step, 1.0) for step in range(100_000)]).points.split()) <= charts.MOST + 1


def test_training_is_by_size_the_longest_run_first_and_each_run_has_a_page(real):
    document, page = parsed(real["training.html"]), real["training.html"].decode()
    assert "<img" not in page and "e+0" not in page
    runs = training_runs(ROOT / "receipts" / "train")
    rows = [e.get("href") for e in document.iter(f"{HTML}a") if (e.get("href") or "").startswith("training/")]
    assert sorted(rows) == sorted(run.page for run in runs)
    named = {run.page: run for run in runs}
    sizes = [(size, list(own)) for size, own in itertools.groupby((named[row] for row in rows), lambda run: run.size)]
    assert [size for size, _ in sizes] == [e.get("id").replace("unnamed", "") for e in document.iter(f"{HTML}h2")]
    most = [own[0].tokens for size, own in sizes if size]
    assert most == sorted(most, reverse=True) and all(own[0].tokens == max(r.tokens for r in own) for _, own in sizes)
    assert all([r.short for r in own[1:]] == sorted(r.short for r in own[1:]) for _, own in sizes)
    shown = texts(document)
    for run in runs:
        assert f"{run.summary['tokens_per_s_per_gpu'] or 0:,.0f}" in shown
        told = real[run.page].decode()
        assert "<polyline" in told or not run.curves
        assert not any(key in told for key in ("tokens_per_s_per_gpu", "step_seconds", "schema_version"))


def test_pages_and_site_stay_small(real):
    assert {name: len(data) for name, data in real.items() if name.endswith(".html") and len(data) > 300_000} == {}
    assert sum(map(len, real.values())) < 300_000 * len(load_packs())


def test_the_matrix_says_what_the_manifest_says(real):
    document = parsed(real["releases.html"])
    stated = {e.get("title"): texts(e) for e in document.iter(f"{HTML}td") if e.get("title")}
    legend = {
        texts(e).split(" ", 1)[1]: texts(e).split(" ", 1)[0]
        for e in document.iter(f"{HTML}dt")
        if "ack" not in texts(e)
    }
    assert legend == {word: answer.mark for word, answer in ANSWERS.items()} and len(set(legend.values())) == 5
    assert set(stated.values()) == {legend[word] + word for word in ANSWERS}, "a mark for the eye, a word for the ear"
    for pack in load_packs():
        tried = {k: v for k, v in manifest.entry_of(pack, ROOT / "receipts").tried.items() if RELEASE.fullmatch(k)}
        for release, verdict in tried.items() if pack.names_bug else ():
            words = {"REPRODUCED": "bug", "REPRODUCED_AND_FIXED": "bug", "FIXED_UPSTREAM": "healthy fixed"}
            where = f"{release}, pack {pack.number:02d}: "
            (word,) = [title.removeprefix(where) for title in stated if title.startswith(where)]
            assert word in words.get(verdict, "unknown"), where


def test_a_pack_page_offers_reproducer_patch_and_command(real):
    for pack in load_packs():
        page = real[f"packs/{pack.number:02d}.html"].decode()
        copies = {f"{pack.id}.py": export.render(pack).encode()}
        copies |= {f"{pack.id}-{path.name}": path.read_bytes() for path in pack.folder.glob("*.patch")}
        for name, data in copies.items():
            assert real[f"packs/{pack.number:02d}/{name}"] == data
            assert page.index(f'href="../packs/{pack.number:02d}/{name}"') < page.index('id="filing"')
        assert page.index(f"python -m reproducers.run {pack.id}") < page.index('id="filing"')
        order = [page.index(f'<h2 id="{name}"') for name in ("files", "filing", "text", "pins", "numbers")]
        assert order == sorted(order)
        assert not pack.patch.is_file() or page.index('<h2 id="text"') < page.index('<h2 id="patch"') < order[3]


def test_the_overview_explains_its_states_and_says_how_it_stands_upstream(real):
    overview = texts(parsed(real["index.html"]))
    for state in {entry.state.split("(")[0] for entry in manifest.build(load_packs(), ROOT / "receipts").values()}:
        assert STATES[state].meaning in overview
    links = {e.get("href") for e in parsed(real["index.html"]).iter(f"{HTML}a")}
    assert {t.url for pack in load_packs() for t in pack.upstream_state.threads if t.relation == "fixes it"} <= links


def test_standing_upstream(toy):
    def facts(*threads, **more):
        state = {"search": {"found": "threads" if threads else "none", "query": "q", "date": "2026-11-21"}}
        pack = toy.pack().model_copy(update={"upstream_state": UpstreamState(**state, threads=list(threads), **more)})
        return [(item.what, item.url.rsplit("/", 1)[-1]) for item in standing(pack)]

    pull = THREAD | {"url": "https://github.com/toy/toyup/pull/4", "relation": "fixes it", "state": "merged"}
    commit = THREAD | {
        "url": f"https://github.com/toy/toyup/commit/{'a' * 40}",
        "relation": "fixes it",
        "state": "merged",
    }
    near = THREAD | {"relation": "neighbour"}
    ((_, url),) = facts()
    assert url == ""
    assert facts(THREAD, pull, commit, near) == [
        ("report #3 open", "3"),
        ("fix #4 merged", "4"),
        ("fix aaaaaaa merged", "a" * 40),
    ]
    filed = {"filed": "pr", "filed_url": "https://github.com/toy/toyup/pull/5", "filed_on": "2026-11-22"}
    assert facts(THREAD, **filed)[0] == ("filed as pr", "5")


def test_affected_releases_are_a_range_only_if_no_healthy_release_lies_between():
    bug, fine = "REPRODUCED", "FIXED_UPSTREAM"
    assert affected({"0.10.0": bug, "0.6.4": bug, "0.8.1": bug, "0.11.0": fine}) == "0.6.4 to 0.10.0 (3 tried)"
    assert affected({"0.10.0": bug, "0.6.4": bug, "0.8.1": bug, "0.7.0": fine}) == "0.6.4, 0.8.1, 0.10.0"
    assert affected({"0.10.0": bug, "0.6.4": bug, "a" * 40: bug}) == f"0.6.4, 0.10.0, {'a' * 12}"
    assert affected({"0.19.0 + 02": "REPRODUCED_AND_FIXED", "1.0": fine}) == "0.19.0 + 02"
    assert affected({}) == ""


def test_hosts_are_in_natural_order(real):
    names = [e.get("id") for e in parsed(real["hosts.html"]).iter(f"{HTML}h2")]
    assert names == sorted(names, key=natural) and names.index("h200-2") < names.index("h200-10x2")


def test_observations_are_numbers_not_names_of_checks(real):
    for pack in load_packs():
        page = real[f"packs/{pack.number:02d}.html"].decode()
        lines = list(filter(None, map(words, re.findall(r"(?s)<p\b[^>]*>(.*?)</p>", page))))
        observed = [text for text in lines if text.startswith("Seen: ")]
        paths = list(filter(None, (newest(pack, lane, ROOT / "receipts") for lane in pack.lanes)))
        assert len(observed) == len(paths) and not any(text.startswith("Reason: ") for text in lines)
        for text, body in zip(observed, map(read, paths), strict=True):
            if body.verdict not in ("REPRODUCED", "REPRODUCED_AND_FIXED", "FIXED_UPSTREAM"):
                continue  # its reason is what was seen
            wanted = "healthy" if body.verdict == "FIXED_UPSTREAM" else "bug"
            showing = [c for c in body.checks("pristine") if (c.role, c.state) == ("bug", wanted)]
            assert body.reason not in text and f"Seen: {len(showing)} bug check" in text


def test_the_site_is_swapped_in_whole(tmp_path, monkeypatch):
    out = tmp_path / "site"
    publish.publish({"index.html": b"old", "gone/a.html": b""}, out)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            publish.publish({"index.html": b"new"}, out)
    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "rename", lambda a, b: (_ for _ in ()).throw(OSError(28, "full")) if a.name == "new" else rename(a, b)
        )
        with pytest.raises(PatchlaneError, match="full"):
            publish.publish({"index.html": b"new"}, out)
    assert (out / "index.html").read_bytes() == b"old" and (out / "gone/a.html").exists()
    publish.publish({"index.html": b"new"}, out)
    assert sorted(p.name for p in out.rglob("*")) == [publish.MARKER, "index.html"]
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_folder_that_it_did_not_make_is_left_alone(tmp_path, kind):
    out = tmp_path / "site"
    files = {"folder": ["site/a"], "file": ["site"], "link": ["linked/a", f"linked/{publish.MARKER}"]}
    write_tree(tmp_path, dict.fromkeys(files[kind], "1"))
    if kind == "link":
        out.symlink_to(tmp_path / "linked")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PatchlaneError) as refused:
        publish.publish({"index.html": b"new"}, out)
    assert refused.value.remedy.startswith("--out ") and sorted(tmp_path.rglob("*")) == before


@pytest.mark.site
@pytest.mark.long
def test_the_verb_writes_the_same_site_without_a_network_client(real, tmp_path):
    """A fresh process, with another hash seed, writes the same bytes and has imported nothing that can post."""
    program = (
        "import sys; from typer.testing import CliRunner; from reproducers import site;"
        "done = CliRunner().invoke(site.app, ['--out', sys.argv[1]]);"
        "print(done.output, done.exit_code);"
        "banned = {'requests', 'urllib3', 'http.client', 'httpx', 'aiohttp', 'pypi_simple', 'ssl', 'model'};"
        "print(sorted(banned & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "index.html" in done.stdout and done.stdout.split("\n")[-2] == "[]", done.stdout
    assert {name: (tmp_path / "site" / name).read_bytes() for name in real} == real


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this host")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


WIDTH = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
MAIN = "document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth"
OPEN = "document.querySelectorAll('details').forEach(details => { details.open = true })"


@pytest.mark.site
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_every_screen_and_loads_without_a_fault(real, browser, tmp_path, scheme):
    publish.publish(real, tmp_path / "site")
    context = browser.new_context(viewport={"width": 360, "height": 780}, color_scheme=scheme)
    page, complaints, grounds = context.new_page(), [], set()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    for name in sorted(name for name in real if name.endswith(".html")):
        page.goto((tmp_path / "site" / name).as_uri())
        page.evaluate(OPEN)
        assert page.evaluate(WIDTH) <= 0 and page.evaluate(MAIN) <= 0, name
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    page.goto((tmp_path / "site" / "index.html").as_uri())
    for width in (390, 768, 1217, 1280):  # 1217: the narrowest screen with the whole overview table
        page.set_viewport_size({"width": width, "height": 780})
        assert page.evaluate(WIDTH) <= 0 and page.evaluate(MAIN) <= 0, width
    context.close()
    assert complaints == []
    assert grounds == {"rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 20, 25)"}


SHIFT = """() => new Promise(done => {
  let moved = 0;
  new PerformanceObserver(list => { for (const one of list.getEntries()) moved += one.value })
    .observe({type: 'layout-shift', buffered: true});
  setTimeout(() => done(moved), 300);
})"""


@pytest.mark.site
@pytest.mark.parametrize("width", [390, 1280])
def test_the_matrix_scrolls_in_its_box_and_keeps_its_releases(real, browser, tmp_path, width):
    publish.publish(real, tmp_path / "site")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "site" / "releases.html").as_uri())
    assert page.evaluate(WIDTH) <= 0 and page.evaluate(SHIFT) == 0
    box = page.locator('[aria-label="Releases of megatron-core"]')
    before = box.locator("tbody th").first.bounding_box()["x"]
    box.evaluate("box => box.scrollLeft = 10000")
    assert width > 390 or box.evaluate("box => box.scrollLeft > 0")
    assert abs(box.locator("tbody th").first.bounding_box()["x"] - before) < 1
    last = box.locator("tbody tr").first.locator("td").last.bounding_box()
    assert before < last["x"] and last["x"] + last["width"] <= width
    page.close()
