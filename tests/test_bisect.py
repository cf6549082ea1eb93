"""The boundary between two ends: over the toy's releases and over commits, both ways, and what must be refused."""

import re
from pathlib import Path

import many_releases
import pytest
from toy import FIRST, SOURCE, TOTAL, edited, git, write_tree
from typer.testing import CliRunner

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers import bisect
from reproducers.evidence import manifest, receipts, verification
from reproducers.record import schema
from reproducers.record.schema import load_pack
from reproducers.studies.versions import asking
from reproducers.studies.versions import block as made
from reproducers.studies.versions.answers import Word
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.store import Store

pytestmark = pytest.mark.rest  # starts dozens of interpreters


def bisected(*args):
    """(the block, what people were told)."""
    done = CliRunner().invoke(bisect.app, ["7", *args], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout, done.stderr


def asked(said):
    """{tree: answer} of the lines that tell it, in order."""
    return dict(re.findall(r"^  (\S+) +(bug|healthy|code not there|cannot test)\b", said, re.M))


def test_releases_that_cannot_be_tested_are_straddled(released):
    block, said = bisected("--for", "fixed", "--timeout", "3")
    assert [*asked(said)][:2] == ["1.0", "1.10"]  # both ends first
    assert block.startswith(
        "### pack07: total forgets the first value\n\n**Fixed after `1.2`, at the latest in `1.4`**"
    )
    assert "- between them, not testable: toyup 1.3: cannot test: hung" in block
    assert (
        "- after it, tried: toyup 1.10: healthy" in block
        and "- last bad: toyup 1.2: bug" in block
        and "ran 3 times, with the same answer" in block
    )
    assert "    python -m reproducers.run pack07 --at 1.4 --arm pristine --lane cpu -n 3" in block
    folder = released.root / "build/receipts"
    assert len(list(folder.glob("07/*.json"))) >= 5 and "Receipts:" not in block  # nobody else has them
    assert re.search(r"1\.2 +runs 3 times", said) and len(re.findall(r"(?m)^ +-> bug in ", said)) >= 3
    assert verification.verify_all(folder) == {}


def test_where_the_code_is_not_there_the_bug_is_not(released):
    block, said = bisected("--for", "introduced", "--bad", "1.2", "--repeats", "1")
    assert "**Introduced in `1.0`**" in block and "- last good: toyup 0.9: healthy" in block
    assert asked(said)["0.8"] == "code not there"


@pytest.fixture
def clone(released):
    """Nine commits in two lines that join: 3 does not import, 5 on the side mends it, 8 breaks it again."""
    folder = write_tree(released.root / "clone", {"README": ""})
    git("init", "-qb", "main", cwd=folder)
    shas = []

    def commit(files, *more):
        write_tree(folder, {**files, "README": f"{len(shas)}"})
        git("add", "-A", cwd=folder)
        git("commit", "-qm", f"commit {len(shas)}", *more, cwd=folder)
        shas.append(git("rev-parse", "HEAD", cwd=folder).strip())

    good = edited(TOTAL, FIRST)
    for files in (SOURCE, SOURCE, SOURCE, many_releases.BROKEN, SOURCE):
        commit(files)
    git("checkout", "-qb", "side", cwd=folder)
    commit(good)
    git("checkout", "-q", "main", cwd=folder)
    commit({"other": ""})
    git("merge", "-q", "--no-ff", "-X", "theirs", "-m", "merge", "side", cwd=folder)
    shas.append(git("rev-parse", "HEAD", cwd=folder).strip())
    commit(SOURCE)
    return folder, shas


def test_commits_both_ways(clone):
    folder, shas = clone
    ends = ["--git", str(folder), "--repeats", "2"]
    block, _ = bisected("--for", "fixed", "--bad", shas[0], "--good", shas[7], *ends)
    assert f"**Fixed in `{shas[5][:12]}`**" in block and f"- last bad: `{shas[4]}`" in block
    assert "commit 5)" in block and "--upstream CLONE" in block and str(folder) not in block
    block, _ = bisected("--for", "introduced", "--good", "side", "--bad", "main", *ends)
    assert f"**Introduced in `{shas[8][:12]}`**" in block and f"- last good: `{shas[7]}`" in block


def test_commits_that_are_built_first(clone):
    """Where its build fails a commit is straddled; receipts say what was built, and answer for no other tree."""
    folder, shas = clone
    command = f'test "$PATCHLANE_COMMIT" != {shas[4]} && touch toyup/lib.so'
    ends = ["--for", "fixed", "--git", str(folder), "--repeats", "2", "--bad", shas[0], "--good", "side"]
    block, said = bisected(*ends, "--build", command)
    assert f"**Fixed after `{shas[2][:12]}`, at the latest in `{shas[5][:12]}`**" in block
    assert f"not testable: `{shas[4]}` (" in block and "--build ended with 1" in block
    assert "--upstream CLONE --build 'test " in block and "    git clone https://github.com/" in block
    assert f"by a command that only added files: `{command}`" in block
    paths = sorted(Path("build/receipts").glob("07/*.json"))
    trees = [tree for path in paths if (tree := receipts.statement_of(path).tree.annotations)]
    assert len(trees) >= 5 and all(tree.built.command == command and str(tree).endswith(" (built)") for tree in trees)
    assert verification.verify_all(Path("build/receipts")) == {}
    pack = load_pack(next(schema.ROOT.glob("packs/07_*")))
    tried = manifest.affected(pack, sorted(paths))
    assert tried[f"{shas[5]} (built)"] == "FIXED_UPSTREAM" and shas[5] not in tried
    assert len(manifest.importable([pack], Path("build/receipts"), folder / "none")[0]) >= 5
    again, said = bisected(*ends, "--build", command)
    assert "a receipt says so" in said and again.split("Receipts:")[0] == block.split("Receipts:")[0]
    plain, _ = bisected(*ends)
    assert f"**Fixed in `{shas[5][:12]}`**" in plain


def test_a_build_that_changes_sources_is_no_end(clone):
    folder, shas = clone
    ends = ["--git", str(folder), "--bad", shas[0], "--good", shas[7]]
    with pytest.raises(CannotTestHere, match="changed README, which is the commit's own"):
        bisected("--for", "fixed", *ends, "--build", "echo >> README")


def test_a_built_commit_has_no_patched_arm(clone):
    folder, shas = clone
    pack = load_pack(next(schema.ROOT.glob("packs/07_*")))
    with pytest.raises(PatchlaneError, match="no patched arm"):
        execute(pack, Request(shas[0], upstream=folder, build="true"), Store(), lambda arm, line: None)


def test_one_check_of_a_pack_whose_other_bugs_stay(released, clone):
    """total is mended at 4 and first never: the pack as a whole is not fixed, its check is."""
    folder, shas = clone
    git("checkout", "-q", shas[4], cwd=folder)
    for number, files in enumerate((edited(TOTAL), {"other": "x"})):
        write_tree(folder, files)
        git("add", "-A", cwd=folder)
        git("commit", "-qm", f"more {number}", cwd=folder)
    ends = ["--git", str(folder), "--bad", shas[2], "--repeats", "2"]
    first, last = (git("rev-parse", name, cwd=folder).strip() for name in ("HEAD~1", "HEAD"))
    with pytest.raises(PatchlaneError):
        bisected("--for", "fixed", *ends, "--good", last)
    block, _ = bisected("--for", "fixed", *ends, "--good", last, "--check", "total")
    assert f"**Fixed in `{first[:12]}`** (toy/toyup), by the check `total` alone" in block
    assert "): bug: total: 1.0" in block and "): healthy: total: 0.0" in block
    with pytest.raises(PatchlaneError, match="it made no bug check 'mean'") as refused:
        bisected("--for", "fixed", *ends, "--good", last, "--check", "mean")
    assert refused.value.exit_code is Exit.USAGE and "--check" in refused.value.remedy


def test_ends_that_are_wrong(released, clone):
    folder, shas = clone
    for args in (
        ["fixed", "--bad", "0.9"],
        ["fixed", "--good", "1.2"],
        ["fixed", "--good", "0.9"],
        ["introduced", "--good", "1.0", "--bad", "1.2"],
        ["introduced", "--git", str(folder), "--bad", "main"],
        ["fixed", "--git", str(released.root / "index"), "--bad", "main"],
        ["fixed", "--git", str(folder), "--bad", "no-such"],
        ["fixed", "--bad", shas[0]],
        ["fixed", "--build", "true"],
    ):
        with pytest.raises(PatchlaneError) as refused:
            bisected("--for", *args)
        assert refused.value.exit_code is Exit.USAGE and refused.value.remedy, args
    with pytest.raises(CannotTestHere):
        bisected("--for", "fixed", "--bad", "1.1")


def test_a_boundary_that_answers_otherwise_the_next_time(released, monkeypatch):
    once = asking.Asker._run

    def run(self, tree, repeats):
        answer = once(self, tree, repeats)
        return answer._replace(word=Word.CANNOT, why="repeats disagree") if repeats > 1 and tree == "1.4" else answer

    monkeypatch.setattr(asking.Asker, "_run", run)
    with pytest.raises(PatchlaneError) as refused:
        bisected("--for", "fixed", "--bad", "1.2", "--good", "1.4", "--repeats", "2", "--timeout", "3")
    assert refused.value.exit_code is Exit.CONTRADICTED


def test_the_block_has_no_argument_of_this_machine_and_no_check_cut_in_two():
    given = ["pack05", "--for=fixed", "--receipts", "out/mine", "--host=h", "-v", "--again", "--git=/clone"]
    assert made._public(given) == ["pack05", "--for", "fixed", "--git", "/clone"]
    names = [f"a check with a long name, number {number}" for number in range(20)]
    told = made.whole("; ".join(names)).split("; ")
    assert told[:-1] == names[: len(told) - 1] and told[-1] == f"and {20 - len(told) + 1} more"
    assert made.whole(names[0]) == names[0] and made.whole("x" * 300) == "x" * 300
