"""Every pack with a patch on its real upstream, cpu lane: the good patch, the reversed patch, mutants, null patches."""

import dataclasses
import subprocess
import sys

import pytest
import tiers
from toy import git, write_tree

from patchlane.base.errors import CannotTestHere
from patchlane.base.exits import Exit
from reproducers.base.verdicts import Verdict
from reproducers.record.schema import ROOT, load_packs
from reproducers.studies.mutation import ablation
from reproducers.studies.mutation.score import lines
from reproducers.studies.mutation.sitting import Asked, sit
from reproducers.trial import experiment
from reproducers.trial.arms import ArmResult
from reproducers.trial.experiment import Request, execute, expected
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

RUN_ARM = experiment.run_arm
WEAK = {Verdict.FIX_INEFFECTIVE, Verdict.FIX_REGRESSES, Verdict.PATCH_STALE}
# What tests of the upstream's own hold on to, and a patch must not change: each script ends with an assertion.
VARIANT = "megatron.core.transformer.experimental_attention_variant"
HELD_UPSTREAM = {
    1: f"""
import torch
from unittest import mock
from {VARIANT} import dsa
dsa.get_pg_size = lambda group: 2
with mock.patch.multiple(torch.distributed, is_initialized=lambda: True, all_gather=lambda made, own, group: None), \\
        mock.patch("torch.tensor", wraps=lambda data, device, dtype: torch.as_tensor(data, dtype=dtype)) as made:
    try:
        dsa._validate_nonpacked_cp_uniform_length(5, 5, 2, object(), torch.device("cuda"))
    except RuntimeError:
        pass
assert [call.kwargs["device"].type for call in made.call_args_list] == ["cuda"]
""",
    2: f"""
import torch
from types import SimpleNamespace
from {VARIANT}.ops import tilelang_dsa
tilelang_dsa.SparseMLA = SimpleNamespace(apply=lambda q, kv, indices, scale: (q[..., :512], None))
q, k = (torch.zeros(1, 1, heads, 576, dtype=torch.bfloat16) for heads in (16, 1))
assert tilelang_dsa.fused_sparse_mla_absorbed(q, k, torch.zeros(1, 1, 64), 1.0, 512).shape == (1, 1, 16, 512)
""",
}
ON_CPU = [pack for pack in load_packs() if "cpu" in pack.lanes]
PACKS = [pack for pack in ON_CPU if pack.patch.is_file()]
UNPATCHED = [pack for pack in ON_CPU if not pack.patch.is_file()]
NULLED = {4, 9, 35}  # one an upstream: an arm that shows the bug again is ruled on alike in every pack
ABLATED = {9}  # a quick one; `python -m reproducers.ablate --all` does every pack
pytestmark = [pytest.mark.upstream, pytest.mark.pack, pytest.mark.timeout(3600)]


@pytest.fixture
def needs_once(monkeypatch):
    """What a pack needs beside its tree is checked once a test: for compiled libraries that takes seconds."""
    known, real = {}, pins.need_trees

    def need_trees(store, sets, lane):
        key = (*sets, lane)
        if key not in known:
            known[key] = real(store, sets, lane)
        return known[key]

    monkeypatch.setattr(pins, "need_trees", need_trees)


def first_run(pack):
    """(run with the pack's own patch, the tree); its pristine arm also serves every other patch text."""
    store = Store()
    try:
        tree = pins.pin_tree(store, pack, pack.pins["live"])
    except CannotTestHere as error:
        pytest.skip(str(error))
    run = execute(pack, Request(), store, lambda arm, line: None)
    if run.ruling.verdict is Verdict.UNTESTABLE:
        pytest.skip(run.ruling.reason)
    return run, tree


def with_text(pack, seen, text, folder, monkeypatch):
    """A run of the pack with another patch text; the pristine arm is the one already seen."""
    changed = ablation.with_patch(pack, text, folder)
    real, before = RUN_ARM, [seen.pristine[0]]

    def arm(spec, sink) -> ArmResult:
        return dataclasses.replace(before.pop()) if before else real(spec, sink)

    monkeypatch.setattr(experiment, "run_arm", arm)
    return execute(changed, Request(), Store(), lambda arm, line: None)


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
        text.append(f"--- {file.target_file}\n+++ {file.source_file}\n")
        for hunk in file:
            text.append(f"@@ -{hunk.target_start},{hunk.target_length} +{hunk.source_start},{hunk.source_length} @@\n")
            swap = {"+": "-", "-": "+"}
            rows = [(swap.get(line.line_type, line.line_type), line.value) for line in hunk]
            text += [kind + value for kind, value in rows]
    return "".join(text)


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.id)
def test_only_the_whole_patch_is_validated(pack, tmp_path, monkeypatch, needs_once):
    """One test a pack, so that its pristine arm runs once."""
    seen, tree = first_run(pack)
    assert seen.ruling.verdict in expected(pack, seen.request), seen.ruling
    assert all(seen.hunks.values())

    def tried(name, text):
        return with_text(pack, seen, text, tmp_path / name.replace("/", "_"), monkeypatch)

    if pack.number in NULLED:
        assert tried("null", null_patch(pack, tree, tmp_path)).ruling.verdict is Verdict.FIX_INEFFECTIVE
    stale = tried("reversed", reversed_patch(pack, tmp_path)).ruling
    assert stale.verdict is Verdict.PATCH_STALE and "ALREADY_APPLIED" in stale.reason


@pytest.mark.rest
@pytest.mark.parametrize("pack", [pack for pack in PACKS if pack.number in ABLATED], ids=lambda pack: pack.id)
def test_a_patch_without_one_of_its_hunks_is_refused(pack, tmp_path, monkeypatch, needs_once):
    seen, _ = first_run(pack)
    dropped = {
        name: with_text(pack, seen, text, tmp_path / name.replace("/", "_"), monkeypatch).ruling
        for name, text in ablation.ablations(pack)
    }
    assert dropped and all(ruling.verdict in WEAK for ruling in dropped.values()), dropped


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.id)
def test_every_mistake_written_by_hand_is_caught(pack):
    """Of each pack that changed since its score was kept: `python -m reproducers.mutate PACK --only hand --keep`."""
    if tiers.scored(pack):
        pytest.skip("a kept score holds for its patch, reproducer and mutants as they are")
    try:
        sitting = sit(pack, Asked("hand"), print)
    except CannotTestHere as error:
        pytest.skip(str(error))
    assert sitting.tried, f"{pack.folder.name}/mutants has none"
    assert sitting.exit_code() is Exit.OK, "\n".join(lines(sitting))


@pytest.mark.parametrize("pack", [pack for pack in PACKS if pack.number in HELD_UPSTREAM], ids=lambda pack: pack.id)
def test_a_patch_keeps_what_upstreams_own_tests_hold(pack):
    store = Store()
    try:
        tree = pins.pin_tree(store, pack, pack.pins["live"])
    except CannotTestHere as error:
        pytest.skip(str(error))
    fixed = patching.patched_tree(
        store, tree, pack.patch, patching.strip_for(tree.path, pack.upstream.source_root), pack.number
    )
    for root in (tree.path, fixed.path):
        command = [sys.executable, "-P", "-W", "ignore", "-c", HELD_UPSTREAM[pack.number]]
        done = subprocess.run(command, env={"PYTHONPATH": str(root)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("pack", UNPATCHED, ids=lambda pack: pack.id)
def test_reports_and_guards(pack):
    """The bug of a report is there; a guard also finds it gone from the fixed release."""
    run, _ = first_run(pack)
    assert run.ruling.verdict in expected(pack, run.request), run.ruling
    assert ("REGRESSION_GUARD_PASSED" in run.sentinels) == (pack.kind == "guard")


def test_a_fixed_release_is_said_to_be_fixed(tmp_path):
    command = [sys.executable, "-m", "reproducers.run", "pack09", "--at", "0.8.5", "--receipts", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("liger-kernel 0.8.5 cannot be fetched or run here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FIXED_UPSTREAM" in done.stdout
