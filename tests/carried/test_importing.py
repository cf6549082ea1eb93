"""What a queue's patches change, and the tree that they were made for."""

import pytest
from toy import SOURCE, git, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.carried import importing

SHA = "1" * 40


@pytest.fixture
def clone(tmp_path):
    repo = write_tree(tmp_path / "clone", SOURCE)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"], ["tag", "core_v1.0"]):
        git(*command, cwd=repo)
    write_tree(repo, {"x": ""})
    for command in (["add", "-A"], ["commit", "-qm", "b"], ["tag", "v1.0"]):
        git(*command, cwd=repo)
    return repo


def base(name, clone=None):
    found = importing.subject("toy/toyup", name, clone, None, None).base
    return found.release, found.sha


def test_a_base_in_each_form(clone):
    first, last = (git("rev-parse", name, cwd=clone).strip() for name in ("HEAD~1", "HEAD"))
    assert base("1.0") == ("1.0", None) and base(SHA) == (None, SHA)
    assert base("1.0", clone) == base("core_v1.0", clone) == ("1.0", first)
    assert base("v1.0", clone) == ("1.0", last)
    assert base(last[:9], clone) == base("HEAD", clone) == (None, last)
    for name, where in (("1234567", None), ("main", None), ("nowhere", clone), ("--all", clone)):
        with pytest.raises(PatchlaneError):
            base(name, where)


def test_an_upstream_that_packs_know_and_another():
    known = importing.subject("nvidia/megatron-lm", "0.19.0", None, None, None).upstream
    assert (known.distribution, known.source_root) == ("megatron-core", ".")
    mine = importing.subject("pytorch/pytorch", "2.12.1", None, "torch", None).upstream
    assert mine.distribution == "torch"
    assert importing.subject("a/Triton", "3.7.1", None, None, "python").upstream.source_root == "python"
    for repo, root in (("toyup", None), ("a/b", "../up")):
        with pytest.raises(PatchlaneError):
            importing.subject(repo, "1.0", None, None, root)
