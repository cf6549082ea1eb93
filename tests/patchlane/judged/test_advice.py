"""What mends the bugs found: one release a distribution, and patches tried as they are printed."""

import subprocess
from dataclasses import replace

import pytest
from toy import SOURCE, edited
from toy_environment import BUGGY, FIXED, HEALTHY, MENDED, PATCHED, installed, known, known_of, tree

from patchlane.judged.advice import advised
from patchlane.judged.judgement import audit
from patchlane.listed import formats
from patchlane.present.environment import of_python, of_reading

MOVED = {**SOURCE, "toyup/core.py": "LIMIT = 1\n" + SOURCE["toyup/core.py"]}


@pytest.fixture
def asked(toy, tmp_path):
    """(the toy's answer, the advice) for an installation with these files; None: as it is."""

    def ask(files=SOURCE, trees=(), **more):
        prints = known_of(toy.pack(), trees=trees)
        folder = tmp_path / "site" if files is None else installed(tmp_path / "site", files, **more)
        seen = of_python(folder, prints)
        answers, advice = advised(audit(prints, seen), prints, seen)
        return answers[0], advice

    return ask


def test_a_bug_has_both_ways_out(asked, tmp_path):
    answer, (advice,) = asked()
    assert answer.release == advice.command == "pip install toyup==2.0" and advice.stays == advice.unknown == []
    assert answer.remedy.startswith("patch -F0 -p1 -d ") and str(tmp_path / "site") in answer.remedy


@pytest.mark.parametrize("files", [SOURCE, MOVED])
@pytest.mark.parametrize("tool", ["patch", "git"])
def test_the_printed_command_mends_also_with_an_offset(asked, files, tool, monkeypatch):
    if tool == "git":
        monkeypatch.setattr("shutil.which", lambda name: None)
    answer, _ = asked(files, (BUGGY, MENDED))
    done = subprocess.run(answer.remedy, shell=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and asked(None, (BUGGY, MENDED))[0].state == "patched"


def test_a_patch_that_does_not_apply_is_not_offered_as_a_command(asked):
    drifted = {**SOURCE, "toyup/core.py": SOURCE["toyup/core.py"].replace("    result = 0.0\n", "    result = (0.0)\n")}
    answer, _ = asked(drifted, (BUGGY, MENDED))
    assert answer.state == "buggy" and answer.remedy.startswith("rebase ") and "patch -F0" not in answer.remedy


def test_a_bug_without_a_way_out_says_so(asked):
    answer, advice = asked(SOURCE, (replace(BUGGY, patch=None), MENDED))
    assert advice == [] and answer.remedy.startswith("none is known") and "notes.md" in answer.remedy


NEWER, OLDER = tree("3.0", "fixed", FIXED), tree("0.9", "fixed", FIXED)


def test_of_healthy_releases_the_newest_is_named(asked):
    assert asked(SOURCE, (OLDER, BUGGY, MENDED, HEALTHY, NEWER))[1][0].release == "3.0"
    assert asked(SOURCE, (OLDER, BUGGY, MENDED))[1][0].release == "0.9"


@pytest.mark.parametrize(
    ("version", "forced"),
    [
        ("1.0", False),
        ("2.0", True),  # the code of 1.0 under the metadata of 2.0, which is other code
        ("1.5", False),  # nobody measured 1.5: it may have the code of 1.0
    ],
)
def test_pip_is_forced_where_metadata_and_code_disagree(asked, version, forced):
    _, (advice,) = asked(version=version)
    assert ("--force-reinstall" in advice.command) == bool(advice.reason) == forced


def test_pip_is_forced_where_metadata_is_there_twice(asked, tmp_path):
    installed(tmp_path / "site", {}, "2.0")
    assert "--force-reinstall" in asked()[1][0].command


def test_a_release_that_brings_as_many_bugs_is_not_advised(toy, tmp_path):
    pack = toy.pack()
    other = pack.model_copy(update={"number": 8})
    mine = known_of(pack, other)
    theirs = replace(mine.packs["pack08"], trees=(tree("1.0", "fixed"), tree("2.0", "buggy")))
    prints = replace(mine, index=replace(mine.index, packs={**mine.packs, "pack08": theirs}))
    seen = of_python(installed(tmp_path / "site"), prints)
    answers, advice = advised(audit(prints, seen), prints, seen)
    assert [answer.state for answer in answers] == ["buggy", "fixed"] and advice == []
    assert answers[0].release == "" and answers[0].remedy.startswith("patch ")


def test_of_a_file_the_line_is_named(tmp_path):
    (tmp_path / "r.txt").write_text("first==1\ntoyup==1.0\n")
    seen = of_reading(formats.read(tmp_path / "r.txt", {}))
    _, (advice,) = advised(audit(known(), seen), known(), seen)
    assert advice.command == f"toyup==2.0 in {tmp_path / 'r.txt'}:2"


def test_patches_are_tried_on_top_of_those_before(toy, tmp_path):
    """Two packs with one patch: what the first command did, the second cannot do again."""
    pack = toy.pack()
    twin = pack.model_copy(update={"number": 8})
    prints = known_of(pack, twin, trees=(BUGGY, MENDED))
    seen = of_python(installed(tmp_path / "site"), prints)
    answers, _ = advised(audit(prints, seen), prints, seen)
    assert [answer.remedy.split()[0] for answer in answers] == ["patch", "rebase"]


def test_what_is_patched_or_unknown_needs_nothing_here(asked):
    answer, advice = asked(PATCHED)
    assert (answer.state, answer.remedy, answer.release, advice) == ("patched", "", "", [])
    assert asked(edited(("values[1:]:", "values[2:]:")))[1] == []
