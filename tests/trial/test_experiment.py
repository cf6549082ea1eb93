"""The toy experiment end to end: the verdict on each kind of patch and tree."""

import pytest
from seeded import SEEDED
from toy import CORE, DEAD, FIRST, HEAD, RECORD, SOURCE, SUM, TOTAL, body, diff, edited, git, listing, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.record.schema import load_pack
from reproducers.studies.mutation import ablation
from reproducers.trial import census, screen
from reproducers.trial.experiment import Request, execute, expected
from reproducers.upstream import patching
from reproducers.upstream.store import tree_digest


def test_good_patch(toy):
    run = toy.run(toy.pack())
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, run.ruling
    assert run.sentinels == ["BUG_REPRODUCED", "FIX_VALIDATED"]
    assert run.hunks == {"toyup/core.py hunk 1": True, "toyup/core.py hunk 2": True}
    assert any(line.startswith("[verdict] FIX_VALIDATED") for line in run.log)


PATCHES = {
    "null": (edited(('"""The sum."""', '"""The sum, really."""')), Verdict.FIX_INEFFECTIVE),
    "first hunk only": (edited(TOTAL), Verdict.FIX_INEFFECTIVE),
    "second hunk only": (edited(FIRST), Verdict.FIX_INEFFECTIVE),
    "symptom": (edited(("    return result\n", "    return 6.0\n"), FIRST), Verdict.FIX_REGRESSES),
    "breaks a neighbour": (edited(TOTAL, FIRST, ("sum(values) / len", "1 + sum(values) / len")), Verdict.FIX_REGRESSES),
    "crashes": (edited(TOTAL, FIRST, ("def mean(values):", "def mean(:")), Verdict.DIFFERENT_FAILURE),
    "unexecuted hunk": (edited(TOTAL, FIRST, ("return count + 1", "return count")), Verdict.INCONCLUSIVE),
}


@pytest.mark.parametrize("name", PATCHES)
def test_bad_patch(toy, name):
    new, verdict = PATCHES[name]
    run = toy.run(toy.pack(toy.patch(new)))
    assert run.ruling.verdict is verdict, run.ruling
    assert "FIX_VALIDATED" not in run.sentinels


PLACES = {
    "a path of no installed package": "'site-packages' not in __file__",
    "an option of the runner": "'--watch' in __import__('sys').argv",
    "... of the command as it was": "'--watch' in __import__('sys').orig_argv",
    "the folder where it runs": "'patched' in __import__('os').getcwd()",
    "a variable of the arm's": "any(name.startswith('ARM') for name in __import__('os').environ)",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_fix_that_holds_only_where_it_is_tried(toy, place):
    start = f"values[0 if {place} else 1 :]:"
    run = toy.run(toy.pack(toy.patch(edited((TOTAL[0], start), FIRST))))
    assert run.ruling.verdict is Verdict.FIX_INEFFECTIVE, run.ruling
    assert any("toyup/core.py:7 names " in line for line in run.log), run.log
    assert "toyup/core.py:7 names " in screen.verdict(run, 200).plain


def test_a_fix_that_holds_only_where_it_is_installed(toy):
    """The census' own arm of the patched tree lies as in a checkout."""
    start = "values[0 if 'site-packages' in __file__ else 1 :]:"
    run = toy.run(toy.pack(toy.patch(edited((TOTAL[0], start), FIRST))), census=True)
    assert run.census.strayed[-1] == census.elsewhere("bug: total")
    assert run.ruling.verdict is Verdict.FIX_REGRESSES, run.ruling
    assert toy.run(toy.pack(), census=True).ruling.verdict is Verdict.REPRODUCED_AND_FIXED


def test_a_fix_of_which_a_line_did_not_run_has_a_census_too(toy):
    """That is refused anyway; by what it does it is known to be wrong."""
    seldom = "result = 0.0\n    if len(values) > 9999:\n        return 0.0"
    for first, verdict in (
        ("0", Verdict.INCONCLUSIVE),
        ("0 if 'site-packages' in __file__ else 1", Verdict.FIX_REGRESSES),
    ):
        patch = toy.patch(edited((TOTAL[0], f"values[{first} :]:"), ("result = 0.0", seldom), FIRST))
        assert toy.run(toy.pack(patch), census=True).ruling.verdict is verdict


DISTURBED = """
import torch
core = p.upstream("toyup.core")
p.error("total", abs(core.total([1, 2, 3]) - 6), 1e-9, reference="6", bug_above=0.5)
held = float("reproducers.probe.arm.census.calls" in sys.modules)
p.error("held", held, 0.1, reference="nothing", bug_above=0.5)
"""


@pytest.mark.long
def test_a_check_that_the_census_disturbs_is_asked_without_it(toy):
    """What holds copies of arguments is in a check's sight, too."""
    pack = toy.pack(toy.patch(edited(TOTAL)), body(DISTURBED))
    run = toy.run(pack, census=True)
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, run.ruling
    assert run.census.strayed == []


RANKED = """
import torch

def work(rank):
    core = p.upstream("toyup.core")
    if rank == 0:
        p.error("total", abs(core.total([1, 2, 3]) - 6), 1e-9, reference="6", bug_above=0.5)

p.ranks(2, work)
"""


@pytest.mark.long
def test_what_only_ranks_import_and_call_has_a_census(toy):
    """The first rank's calls are made again, and what the file offers is compared."""
    strict = ("def total(values):", "def total(values, /):")
    for new, found in ((edited(TOTAL), set()), (edited(TOTAL, strict), {"by names", "in order", "offers"})):
        run = toy.run(toy.pack(toy.patch(new), body(RANKED)), census=True)
        assert {one.fact for one in run.census.strayed} == found, run.census.strayed


def test_a_line_that_a_patch_moves_need_not_run(toy):
    """Beside one that it adds, which has to."""
    moved = ("    result = 0.0\n", "    if len(values) > 1000:\n        result = 0.0\n    result = 0\n")
    run = toy.run(toy.pack(toy.patch(edited(TOTAL, FIRST, moved))))
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, run.ruling
    again = (moved[0], moved[1].replace("0.0", "0.0; result = 1.0"))
    run = toy.run(toy.pack(toy.patch(edited(TOTAL, FIRST, again))))
    assert run.ruling.verdict is Verdict.INCONCLUSIVE, run.ruling


def test_unexecuted_hunk_is_named(toy):
    run = toy.run(toy.pack(toy.patch(PATCHES["unexecuted hunk"][0])))
    assert "toyup/core.py hunk 2" in run.ruling.reason
    assert run.hunks["toyup/core.py hunk 2"] is False


def test_a_dead_half_within_one_hunk(toy):
    run = toy.run(toy.pack(toy.patch(edited(TOTAL, FIRST, (SUM, DEAD)))))
    assert run.ruling.verdict is Verdict.INCONCLUSIVE, run.ruling
    assert "toyup/core.py:10 result = -1.0" in run.ruling.reason
    assert run.hunks == {"toyup/core.py hunk 1": False, "toyup/core.py hunk 2": True}


def test_a_dead_line_that_the_lane_lists(toy):
    run = toy.run(toy.pack(toy.patch(edited(TOTAL, FIRST, (SUM, DEAD))), record=listing("result = -1.0")))
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, run.ruling


def test_a_listed_line_that_runs(toy):
    run = toy.run(toy.pack(record=listing("return None")))
    assert run.ruling.verdict is Verdict.INCONCLUSIVE, run.ruling
    assert "return None is unreached by pack.yaml, yet it ran" in run.ruling.reason


def test_a_statement_over_several_lines_counts_once(toy):
    long = (
        SUM,
        SUM.replace("value\n", "(\n            value\n            if value\n            else 0\n        )\n"),
    )
    run = toy.run(toy.pack(toy.patch(edited(TOTAL, FIRST, long))))
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, run.ruling


def test_reversed_patch_is_stale(toy):
    run = toy.run(toy.pack(diff(toy.root, edited(TOTAL, FIRST), SOURCE)))
    assert run.ruling.verdict is Verdict.PATCH_STALE
    assert "ALREADY_APPLIED" in run.ruling.reason


def test_a_patch_that_was_emptied_on_purpose_is_ineffective(toy):
    assert [text for _, text in ablation.ablations(toy.pack(HEAD + toy.patch(edited(TOTAL))))] == [""]
    assert toy.run(toy.pack(patching.NOTHING)).ruling.verdict is Verdict.FIX_INEFFECTIVE


@pytest.mark.parametrize("left", [0, 20], ids=["nothing", "a piece of its header"])
@pytest.mark.parametrize("arm", ["both", "patched"])
def test_a_patch_that_was_cut_off_is_no_fix_that_changes_nothing(toy, left, arm):
    pack = toy.pack()
    with pack.patch.open("r+") as patch:
        patch.truncate(left)
    with pytest.raises(PatchlaneError) as refused:
        toy.run(pack, arm=arm)
    assert "no diff" in refused.value.what and refused.value.remedy.startswith(f"git checkout -- {pack.patch}")


def test_fixed_tree(toy):
    run = toy.run(toy.pack(), edited(TOTAL, FIRST))
    assert run.ruling.verdict is Verdict.FIXED_UPSTREAM
    assert not run.patched


def test_tree_without_the_module(toy):
    run = toy.run(toy.pack(), {"toyup/__init__.py": ""})
    assert run.ruling.verdict is Verdict.UNTESTABLE
    assert "toyup.core" in run.ruling.reason


def test_tree_without_the_package(toy):
    assert toy.run(toy.pack(), {"other/__init__.py": ""}).ruling.verdict is Verdict.UNTESTABLE


def test_absent_lane_is_untestable(toy):
    run = toy.run(toy.pack(), lane="cuda")
    assert run.ruling.verdict is Verdict.UNTESTABLE
    assert "a toy" in run.ruling.reason


def test_source_root(toy):
    """The patch has the repository's layout (src/); the tree is a checkout, then an unpacked wheel."""
    inside = {f"src/{name}": text for name, text in SOURCE.items()}
    fixed = {f"src/{name}": text for name, text in edited(TOTAL, FIRST).items()}
    record = RECORD.replace("  package: toyup\n", "  package: toyup\n  source_root: src\n")
    pack = toy.pack(diff(toy.root, inside, fixed), record=record)
    assert toy.run(pack, inside).ruling.verdict is Verdict.REPRODUCED_AND_FIXED
    assert toy.run(pack, SOURCE).ruling.verdict is Verdict.REPRODUCED_AND_FIXED


LOOP = "for value in values[1:]:\n        result += value\n    return result"
NEW_FILE = edited((LOOP, "from toyup import plus\n\n    return plus.total(values)"), FIRST)


def test_patch_that_adds_a_file(toy):
    new = {**NEW_FILE, "toyup/plus.py": "def total(values):\n    return sum(values)\n"}
    run = toy.run(toy.pack(toy.patch(new)))
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, run.ruling


def test_patch_that_deletes_a_file(toy):
    old = {**SOURCE, "toyup/dead.py": "X = 1\n"}
    pack = toy.pack(toy.patch(edited(TOTAL, FIRST), old))
    assert toy.run(pack, old).ruling.verdict is Verdict.REPRODUCED_AND_FIXED


def test_repeats_that_disagree(toy):
    run = toy.run(toy.pack(toy.patch(edited(TOTAL)), SEEDED), repeats=3)
    assert run.ruling.verdict is Verdict.INCONCLUSIVE
    assert "2x REPRODUCED_AND_FIXED, 1x FIXED_UPSTREAM" in run.ruling.reason


def test_repeats_that_agree(toy):
    run = toy.run(toy.pack(), repeats=2)
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED
    assert "2 of 2" in run.ruling.reason
    assert [arm.stamp.seed for arm in run.pristine] == [0, 1]


def test_patched_arm_alone_is_repeated_too(toy):
    run = toy.run(toy.pack(), arm="patched", repeats=2)
    assert run.ruling.verdict is Verdict.INCONCLUSIVE
    assert len(run.patched) == 2
    assert not run.pristine


def test_pristine_arm_alone(toy):
    run = toy.run(toy.pack(), arm="pristine")
    assert run.ruling.verdict is Verdict.REPRODUCED
    assert not run.patched


def test_the_child_is_not_told_which_arm_it_is(toy):
    run = toy.run(toy.pack(reproducer=body("print('ARGS', sorted(os.environ.values()), sys.argv)")), arm="pristine")
    line = next(line for line in run.log if "ARGS" in line)
    assert "pristine" not in line.removeprefix("[pristine]")
    assert "patched" not in line


def test_upstream_is_left_alone(toy):
    toy.run(toy.pack())
    assert (toy.upstream / "toyup/core.py").read_text() == CORE
    assert sorted(p.name for p in (toy.upstream / "toyup").iterdir()) == ["__init__.py", "core.py"]


def with_pins(*more, kind="bug", record=RECORD):
    """The toy's record with further pins, given as YAML lines, and another kind."""
    lines = "".join(f"  {line}\n" for line in more)
    return record.replace("kind: bug", f"kind: {kind}").replace("lanes:\n", f"{lines}lanes:\n", 1)


def git_pin(toy, name, files):
    """The pin of a new commit with these sources."""
    repo = write_tree(toy.root / name, files)
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", name, cwd=repo)
    sha = git("rev-parse", "HEAD", cwd=repo).strip()
    return f"{name}: {{sha: {sha}, source: {repo}}}"


def without_patch(toy, record):
    pack = toy.pack(record=RECORD)
    (pack.folder / "fix.patch").unlink()
    (pack.folder / "pack.yaml").write_text(record)
    return load_pack(pack.folder)


def both_releases(toy, live, fixed):
    record = with_pins(git_pin(toy, "fixed", fixed), kind="guard")
    live_pin = git_pin(toy, "live", live)
    head, tail = record.split("  live:\n")
    pack = without_patch(toy, head + f"  {live_pin}\n" + tail[tail.index("  fixed:") :])
    return execute(pack, Request(), toy.store, lambda arm, line: None)


def test_a_guard_runs_the_broken_and_the_fixed_release(toy):
    run = both_releases(toy, SOURCE, edited(TOTAL, FIRST))
    assert run.ruling.verdict is Verdict.REPRODUCED, run.ruling
    assert run.sentinels == ["BUG_REPRODUCED", "REGRESSION_GUARD_PASSED"]
    assert run.ruling.verdict in expected(run.pack, run.request)
    assert any(line.startswith("[verdict] REGRESSION_GUARD_PASSED") for line in run.log)


def test_a_guard_whose_fixed_release_is_broken_again(toy):
    run = both_releases(toy, SOURCE, edited(TOTAL))
    assert run.ruling.verdict is Verdict.FIX_INEFFECTIVE
    assert run.sentinels == ["BUG_REPRODUCED"]


def test_a_named_pin_has_its_own_patch_or_none(toy):
    older = edited(("count + 1", "count + 2"))
    pins = [git_pin(toy, "older", older).replace("}", ", patch: older.patch}"), git_pin(toy, "oldest", SOURCE)]
    write_tree(toy.folder, {"older.patch": toy.patch(edited(TOTAL, FIRST, ("count + 1", "count + 2")), older)})
    pack = toy.pack(record=with_pins(*pins))
    runs = {at: execute(pack, Request(at=at), toy.store, lambda arm, line: None) for at in ("older", "oldest")}
    assert runs["older"].ruling.verdict is Verdict.REPRODUCED_AND_FIXED
    assert runs["oldest"].ruling.verdict is Verdict.REPRODUCED
    assert all(run.ruling.verdict in expected(pack, run.request) for run in runs.values())
    (toy.folder / "older.patch").unlink()
    with pytest.raises(PatchlaneError, match=r"07_toy/older\.patch"):
        load_pack(toy.folder)


def test_bitwise_identity_is_a_sentinel(toy):
    code = """
    core = p.upstream("toyup.core")
    p.error("total", abs(core.total([1, 2, 3]) - 6), 1e-9, reference="6", bug_above=0.5)
    p.digest("scaled", bytes(core.scale([1, 2], 3)))
    """
    run = toy.run(
        toy.pack(
            toy.patch(edited(TOTAL)),
            body(code),
            RECORD.replace(
                "kind: bug\nharm: wrong numbers\neffect: Every total lacks its first value", "kind: refactor"
            ),
        )
    )
    assert run.sentinels == ["BUG_REPRODUCED", "FIX_VALIDATED", "BITWISE_IDENTICAL"]
    changed = edited(TOTAL, ("value * factor for", "value * factor + 1 for"))
    run = toy.run(toy.pack(toy.patch(changed), body(code)))
    assert (run.ruling.verdict, "scaled" in run.ruling.reason) == (Verdict.FIX_REGRESSES, True)


def test_a_pin_stacked_on_another_pack(toy):
    """Pack 08 mends the sum; 07, stacked on it, finds only its own half of the bug left, and mends that."""
    write_tree(toy.packs / "08_other", {"fix.patch": toy.patch(edited(TOTAL))})
    half = toy.patch(edited(TOTAL, FIRST), edited(TOTAL))
    pin = git_pin(toy, "half", SOURCE).replace("}", ", stacked_on: [8], patch: half.patch}")
    write_tree(toy.folder, {"half.patch": half})
    run = execute(toy.pack(record=with_pins(pin)), Request(at="half"), toy.store, lambda arm, line: None)
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, run.ruling
    assert [c.name for c in run.pristine[0].checks if c.state == "bug"] == ["first"]
    assert run.pin.stacked_on == [8] and run.tree.origin.stacked_on == (8,)
    (toy.packs / "08_other/fix.patch").unlink()
    with pytest.raises(PatchlaneError, match="pack 08"):
        execute(run.pack, Request(at="half"), toy.store, lambda arm, line: None)


WRITES = """
import pathlib
core = p.upstream("toyup.core")
p.error("total", abs(core.total([1, 2, 3]) - 6), 1e-9, reference="6", bug_above=0.5)
where = {where}
for path in where:
    path.write_text(path.read_text() + "# more")
"""
HERE = "[pathlib.Path(core.__file__)]"
ELSEWHERE = (
    "[q for here in [pathlib.Path(core.__file__).resolve()] if 'patched' in str(here)"
    " for q in here.parents[3].glob('trees/*/toyup/core.py')]"
)


@pytest.mark.parametrize("where", [HERE, ELSEWHERE])
def test_an_arm_that_writes_into_the_store_proves_nothing(toy, where):
    pack = toy.pack(toy.patch(edited(TOTAL)), body(WRITES.format(where=where)))
    run = toy.run(pack)
    word = Verdict.DIFFERENT_FAILURE
    assert (run.ruling.verdict, run.sentinels) == (word, [] if where == HERE else ["BUG_REPRODUCED"]), run.ruling
    assert "changed toyup/core.py in the store's tree of toyup 1.0" in run.ruling.reason
    assert tree_digest(run.tree.path) != run.tree.digest
    honest = toy.run(toy.pack(toy.patch(edited(TOTAL, FIRST))))
    assert honest.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, honest.ruling
    assert tree_digest(honest.tree.path) == honest.tree.digest == run.tree.digest
