"""Remedies that are commands work."""

import subprocess

import pytest

from patchlane.base.errors import from_git


@pytest.mark.parametrize("staged", [False, True])
def test_what_is_removed_comes_back_by_the_command(tmp_path, staged):
    def run(*command):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *command], cwd=tmp_path, check=True)

    file = tmp_path / "receipts" / "one.json"
    file.parent.mkdir()
    file.write_text("{}")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        run(*command)
    if staged:
        run("rm", "-q", str(file))
    else:
        file.unlink()
    run(*from_git("receipts").split()[1:])
    assert file.read_text() == "{}"
