"""Every pack with a patch on its real upstream, cpu lane: the good patch, a null patch, the reversed patch."""

import dataclasses

import pytest
from toy import git, write_tree

from reproducers import ablate, experiment, patching, pins
from reproducers.arms import ArmResult
from reproducers.errors import CannotTestHere
from reproducers.experiment import Request, execute, expected
from reproducers.schema import load_packs
from reproducers.store import Store
from reproducers.verdicts import Verdict

WEAK = {Verdict.FIX_INEFFECTIVE, Verdict.FIX_REGRESSES, Verdict.PATCH_STALE}
# A line of the good patch, and what a hasty fix would have there: the symptom goes, a neighbour breaks.
HASTY = {
    5: ("+    if H % G != 0:", "+    if False:"),
    9: (
        "+            (grad_input, grad_weight, grad_bias) = ctx.saved_tensors",
        "+            grad_input, grad_weight, grad_bias = (t if t is None else 2 * t for t in ctx.saved_tensors)",
    ),
    16: ("tensor.is_floating_point() and not", "tensor.requires_grad and not"),
}
PACKS = [pack for pack in load_packs() if pack.patch.is_file() and "cpu" in pack.lanes]
pytestmark = [
    pytest.mark.upstream,
    pytest.mark.parametrize(
        "pack", [pytest.param(p, marks=pytest.mark.xdist_group(p.id), id=p.id) for p in PACKS], scope="module"
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def seen(pack):
    """(run with the pack's own patch, the tree); its pristine arm also serves the other two tests."""
    store = Store()
    try:
        tree = pins.pin_tree(store, pack, pack.pins["live"], {})
    except CannotTestHere as error:
        pytest.skip(str(error))
    run = execute(pack, Request(), store, lambda arm, line: None)
    if run.ruling.verdict is Verdict.UNTESTABLE:
        pytest.skip(run.ruling.reason)
    return run, tree


@pytest.fixture
def other(pack, seen, tmp_path, monkeypatch):
    """Run the pack with another patch text; the pristine arm is the one already seen."""

    def run(text):
        counter = len(list(tmp_path.glob("other*")))
        changed = ablate.with_patch(pack, text, tmp_path / f"other{counter}")
        real, before = experiment.run_arm, [seen[0].pristine[0]]

        def arm(spec, sink) -> ArmResult:
            return dataclasses.replace(before.pop()) if before else real(spec, sink)

        monkeypatch.setattr(experiment, "run_arm", arm)
        return execute(changed, Request(), Store(), lambda arm, line: None)

    return run


def null_patch(pack, tree, scratch):
    """A comment at the end of the first line after the first hunk's start that may carry one."""
    strip = patching.strip_for(tree.path, pack.upstream.source_root)
    hunk = next(h for h in patching.hunks(pack.patch, strip, after=False) if h.path.endswith(".py"))
    old = (tree.path / hunk.path).read_text()
    lines = old.splitlines(keepends=True)
    for number in range(hunk.first - 1, len(lines)):
        line = lines[number]
        if not line.strip():
            continue
        changed = [*lines]
        changed[number] = line.rstrip("\n") + "  # nothing changes\n"
        try:
            same = compile("".join(changed), "x", "exec").co_code == compile(old, "x", "exec").co_code
        except SyntaxError:
            continue
        if same:
            break
    prefix = "" if strip == 1 else pack.upstream.source_root + "/"
    repo = write_tree(scratch / "null", {prefix + hunk.path: old})
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "old", cwd=repo)
    write_tree(repo, {prefix + hunk.path: "".join(changed)})
    return git("diff", cwd=repo)


def reversed_patch(pack, scratch):
    """The patch turned round by git itself."""
    from unidiff import PatchSet

    text = []
    for file in PatchSet(pack.patch.read_text()):
        text.append(f"--- {file.source_file}\n+++ {file.target_file}\n")
        for hunk in file:
            text.append(f"@@ -{hunk.target_start},{hunk.target_length} +{hunk.source_start},{hunk.source_length} @@\n")
            swap = {"+": "-", "-": "+"}
            rows = [(swap.get(line.line_type, line.line_type), line.value) for line in hunk]
            text += [kind + value for kind, value in rows]
    return "".join(text)


def test_good_patch(pack, seen):
    run, _ = seen
    assert run.ruling.verdict in expected(pack, run.request), run.ruling
    assert all(run.hunks.values())


def test_null_patch(pack, seen, other, tmp_path):
    assert other(null_patch(pack, seen[1], tmp_path)).ruling.verdict is Verdict.FIX_INEFFECTIVE


def test_reversed_patch(pack, other, tmp_path):
    run = other(reversed_patch(pack, tmp_path))
    assert run.ruling.verdict is Verdict.PATCH_STALE
    assert "ALREADY_APPLIED" in run.ruling.reason


def test_every_hunk_is_needed(pack, other):
    verdicts = {name: other(text).ruling for name, text in ablate.ablations(pack)}
    assert verdicts and all(ruling.verdict in WEAK for ruling in verdicts.values()), verdicts


def test_a_hasty_fix_regresses(pack, other):
    line, hasty = HASTY[pack.number]
    text = pack.patch.read_text()
    assert line in text
    run = other(text.replace(line, hasty))
    assert run.ruling.verdict is Verdict.FIX_REGRESSES, run.ruling
