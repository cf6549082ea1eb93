"""The commands that a text prints show the bug as they stand, first to last, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from patchlane.base.errors import CannotTestHere
from reproducers.desk.attachment import export
from reproducers.desk.text.render import render
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

PACKS = load_packs()
GIT = """#!/bin/sh
# clone REPOSITORY DIR: what the pin has of it; checkout SHA: nothing, for the tree is of that commit
case "$1" in
  clone) for last; do :; done; ln -s "$TREES/$last" "$last" ;;
  -C) test -d "$2" && test "$3" = checkout && test "${#4}" = 40 ;;
  *) exit 2 ;;
esac
"""


def printed(pack):
    """(commands that come first, {lane: command}) as the pack's text has them."""
    text = render(pack, ROOT / "receipts")
    first = re.findall(r"(?m)^- first: `(.*)`$", text)
    lanes = {"cpu": "no GPU needed", "cuda": "on a GPU"}
    found = {lane: re.findall(rf"(?m)^- {words}: `(.*)`$", text) for lane, words in lanes.items()}
    return first, {lane: command for lane, (command,) in ((k, v) for k, v in found.items() if v)}


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.id)
def test_each_folder_that_a_command_names_is_made_by_one_before_it(pack):
    first, commands = printed(pack)
    assert set(commands) == set(pack.lanes)
    made = [shlex.split(command.partition(" && ")[0])[-1] for command in first]
    for command in commands.values():
        words = shlex.split(command)
        named = [words[n + 1].split("/")[0] for n, word in enumerate(words) if word in ("--tree", "--needs")]
        assert words[:2] == ["python", f"{pack.id}.py"] and named == made
    pin = pack.pins[pack.filing_pin]
    needs = {need.distribution for need in pins.needs_of(pack, pin)} | {pack.upstream.distribution}
    assert ("mamba" in made) == ("mamba-ssm" in needs)
    assert pin.release or pin.sha in first[0]


def trees_of(pack):
    """(import root of what the text is about, its needs); the release stands in for a commit that is absent."""
    store, refused = Store(offline=True), ""
    for pin in (pack.pins[pack.filing_pin], pack.pins["live"]):
        try:
            tree = pins.pin_tree(store, pack, pin)
            needs = pins.need_trees(store, pins.need_sets(pack, pin.needs), "cpu")
        except CannotTestHere as error:
            refused = refused or str(error)
        else:
            return patching.import_root(tree.path, pack.upstream.source_root), needs
    pytest.skip(refused)


@pytest.mark.upstream
@pytest.mark.pack
@pytest.mark.long
@pytest.mark.parametrize("pack", [pack for pack in PACKS if "cpu" in pack.lanes], ids=lambda pack: pack.id)
def test_the_printed_command_shows_the_bug_in_an_empty_folder(pack, tmp_path):
    tree, needs = trees_of(pack)
    first, commands = printed(pack)
    place, trees, tools = (tmp_path / name for name in ("empty", "trees", "bin"))
    for folder in (place, trees, tools):
        folder.mkdir()
    (place / f"{pack.id}.py").write_text(export.render(pack))
    (tools / "git").write_text(GIT)
    (tools / "git").chmod(0o755)
    words = shlex.split(commands["cpu"])
    folders = [words[n + 1] for n, word in enumerate(words) if word in ("--tree", "--needs")]
    sources = ([tree] if "--tree" in words else []) + [n.path for n in needs if (n.path / "mamba_ssm").is_dir()]
    for name, source in zip(folders, sources, strict=True):
        (trees / name).parent.mkdir(parents=True, exist_ok=True)
        (trees / name).symlink_to(source)
    listed = [need.path for need in needs if need.path not in sources]  # by the file's header, which pip reads
    installed = [str(path) for path in ([] if "--tree" in words else [tree]) + listed]
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"PATH": path, "HOME": str(tmp_path), "TREES": str(trees), "PYTHONPATH": os.pathsep.join(installed)}
    script = " && ".join([*first, commands["cpu"]])
    done = subprocess.run(["bash", "-c", script], cwd=place, env=env, capture_output=True, text=True, timeout=500)
    assert done.stdout.splitlines()[-1].startswith("BUG_REPRODUCED: "), done.stdout[-2000:] + done.stderr[-2000:]
    assert done.returncode == 0
