"""What a formatter alters is a patch's fault only where the patch wrote it."""

import pytest

from patchlane.base.errors import PatchlaneError
from reproducers.desk.rules.patch import formatters
from reproducers.desk.rules.patch.formatted import altered, changes
from reproducers.desk.rules.patch.formatters import FORMATTERS, Formatter

UPPER = Formatter({}, "https://example.org", lambda text: text.upper())
BEFORE, AFTER = "A\nold\nC\n", "A\nold\nnew\nC\n"


def faults(added, tmp_path, before=BEFORE, after=AFTER):
    return list(altered(before, after, added, UPPER, tmp_path))


def test_an_added_line_is_at_fault(tmp_path):
    assert faults({3}, tmp_path) == [(3, "OLD NEW")]


def test_a_line_that_was_there_is_not(tmp_path):
    assert faults({1}, tmp_path) == []
    assert faults({2}, tmp_path, after=BEFORE) == []


def test_a_missing_line_is_owed_by_its_added_neighbour(tmp_path):
    blank = Formatter({}, "https://example.org/2", lambda text: text.replace("b\n", "b\n\n"))
    assert list(altered("a\nc\n", "a\nb\nc\n", {2}, blank, tmp_path)) == [(2, "")]
    assert list(altered("b\nc\n", "a\nb\nc\n", {1}, blank, tmp_path)) == []


def test_what_was_worked_out_is_kept(tmp_path):
    calls = []
    counting = Formatter({}, "https://example.org", lambda text: calls.append(text) or text.upper())
    assert changes("a\n", counting, tmp_path) == changes("a\n", counting, tmp_path) == [(1, 2, ("A",))]
    assert calls == ["a\n"]


def test_a_formatter_that_stops_is_named(tmp_path):
    with pytest.raises(PatchlaneError, match="bracket"):
        changes("a\n", Formatter({}, "", lambda text: (_ for _ in ()).throw(ValueError("bracket"))), tmp_path)


@pytest.mark.parametrize("repo", FORMATTERS)
def test_every_upstream_formats(repo):
    formatter = FORMATTERS[repo]
    if formatter.missing():
        pytest.skip(formatter.missing())
    assert formatter.run("x = {  'a':1 }\n") in ("x = {'a': 1}\n", 'x = {"a": 1}\n')
    assert "/blob/" in formatter.config and len(formatter.config.split("/")[6]) == 40


def test_another_version_is_missing(monkeypatch):
    monkeypatch.setattr(formatters, "version", lambda name: "1.0")
    assert FORMATTERS["NVIDIA/Megatron-LM"].missing() == "pip install black==26.3.0 isort==5.13.2"
