"""Each minimal() raises on the pinned release and returns on a tree without the bug."""

import os
import subprocess
import sys

import pytest

from reproducers.base.errors import CannotTestHere
from reproducers.desk.text.minimal import code
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

ON_CPU = {True: (), False: (pytest.mark.gpu,)}
LANES = [
    pytest.param(pack, "cpu" if "cpu" in pack.lanes else "cuda", id=pack.id, marks=ON_CPU["cpu" in pack.lanes])
    for pack in load_packs()
    if code(pack.reproducer) is not None
]
pytestmark = [pytest.mark.upstream, pytest.mark.timeout(900)]


def run(store, pack, pin, tree, lane):
    """The exit status and output of minimal() on a tree; skips where this host cannot run it."""
    needs = [need.path for need in pins.need_trees(store, pack, pin, lane)]
    root = patching.import_root(tree.path, pack.upstream.source_root)
    command = [sys.executable, "-s", "-P", pack.reproducer, "--minimal", "--lane", lane, "--tree", root]
    for need in needs:
        command += ["--needs", need]
    libraries = {str(library.parent) for need in needs for library in need.glob("*/lib/*.so*")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env = kept | {"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": ":".join([*libraries, kept.get("LD_LIBRARY_PATH", "")])}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.splitlines()[-1])
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("pack", "lane"), LANES)
def test_it_raises_where_the_bug_is_and_returns_where_it_is_not(pack, lane):
    store, live = Store(), pack.pins["live"]
    sound = next((pin for name, pin in pack.pins.items() if pack.healthy_at(name) and pin.release), None)
    try:
        tree = pins.pin_tree(store, pack, live, {})
        status, output = run(store, pack, live, tree, lane)
        assert status == 1 and ", in minimal" in output, output
        if pack.patch.is_file():
            strip = patching.strip_for(tree.path, pack.upstream.source_root)
            status, output = run(
                store, pack, live, patching.patched_tree(store, tree, pack.patch, strip, pack.number), lane
            )
        elif sound is not None:
            status, output = run(store, pack, sound, pins.pin_tree(store, pack, sound, {}), lane)
        else:
            return
    except CannotTestHere as error:
        pytest.skip(str(error))
    assert status == 0, output
