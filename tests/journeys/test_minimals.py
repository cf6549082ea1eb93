"""Each minimal() raises on the pinned release and returns on a tree without the bug."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from patchlane.base.errors import CannotTestHere
from reproducers.desk.text.minimal import code
from reproducers.record.schema import load_packs
from reproducers.trial.arms import ArmSpec, _environment
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

ON_CPU = {True: (), False: (pytest.mark.gpu,)}
LANES = [
    pytest.param(pack, "cpu" if "cpu" in pack.lanes else "cuda", id=pack.id, marks=ON_CPU["cpu" in pack.lanes])
    for pack in load_packs()
    if code(pack.reproducer) is not None
]
pytestmark = [pytest.mark.upstream, pytest.mark.pack, pytest.mark.timeout(3600)]


def run(store, pack, needs, tree, lane, scratch):
    """The exit status and output of minimal() on a tree, with an arm's environment; skips where it cannot run here.

    An arm's environment has the bytecode that arms on this tree have made: to compile a tree's sources takes seconds.
    """
    root = patching.import_root(tree.path, pack.upstream.source_root)
    command = [sys.executable, "-s", "-P", pack.reproducer, "--minimal", "--lane", lane, "--tree", root]
    for need in needs:
        command += ["--needs", need]
    spec = ArmSpec(pack.reproducer, root, needs, lane, 0, "", {}, 0, 0, store.root / "cache")
    environment = _environment(spec, Path(tempfile.mkdtemp(dir=scratch)))  # one for each: an arm fills its own
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.splitlines()[-1])
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("pack", "lane"), LANES)
def test_it_raises_where_the_bug_is_and_returns_where_it_is_not(pack, lane, tmp_path):
    store, live = Store(), pack.pins["live"]
    sound = next((pin for name, pin in pack.pins.items() if pack.healthy_at(name) and pin.release), None)
    try:
        tree = pins.pin_tree(store, pack, live)
        needs = [need.path for need in pins.need_trees(store, pins.need_sets(pack, live.needs), lane)]
        status, output = run(store, pack, needs, tree, lane, tmp_path)
        assert status == 1 and ", in minimal" in output, output
        if pack.patch.is_file():
            strip = patching.strip_for(tree.path, pack.upstream.source_root)
            fixed = patching.patched_tree(store, tree, pack.patch, strip, pack.number)
            status, output = run(store, pack, needs, fixed, lane, tmp_path)
        elif sound is not None:
            healthy = pins.pin_tree(store, pack, sound)
            needs = [need.path for need in pins.need_trees(store, pins.need_sets(pack, sound.needs), lane)]
            status, output = run(store, pack, needs, healthy, lane, tmp_path)
        else:
            return
    except CannotTestHere as error:
        pytest.skip(str(error))
    assert status == 0, output
