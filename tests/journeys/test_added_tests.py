"""The tests that a pack adds upstream fail without its fix and pass with it, on the released package."""

import os
import re
import subprocess
import sys

import pytest

from patchlane.base.errors import CannotTestHere
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

PACKS = [pack for pack in load_packs() if pack.tests_patch.is_file()]


def outcomes(tree, needs, place):
    """{result: how many} of pytest on the tests in ``place``, with this tree as the installed package."""
    path = os.pathsep.join(map(str, [tree, *needs, ROOT, ROOT / "tests/kit"]))
    env = {"PATH": os.environ["PATH"], "HOME": str(place), "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    (place / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "added_tests", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}


@pytest.mark.upstream
@pytest.mark.pack
@pytest.mark.long
@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.id)
def test_an_added_test_fails_without_the_fix_and_passes_with_it(pack, tmp_path):
    store, pin = Store(offline=True), pack.pins["live"]
    try:
        pristine = pins.pin_tree(store, pack, pin)
        sets = pins.need_sets(pack, pin.needs) if "cpu" in pack.lanes else {}
        needs = [need.path for need in pins.need_trees(store, sets, "cpu")]
    except CannotTestHere as error:
        pytest.skip(str(error))
    strip = patching.strip_for(pristine.path, pack.upstream.source_root)
    patched = patching.patched_tree(store, pristine, pack.patch, strip, pack.number)
    patching.apply(tmp_path, pack.tests_patch, 1)
    roots = [patching.import_root(tree.path, pack.upstream.source_root) for tree in (pristine, patched)]
    without, fixed = (outcomes(root, needs, tmp_path) for root in roots)
    assert without.get("failed", 0) > 0 and set(without) <= {"failed", "passed"}, without
    assert set(fixed) == {"passed"} and fixed["passed"] == sum(without.values()), fixed
