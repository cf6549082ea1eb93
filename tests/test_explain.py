"""explain: complete tables, one source for every word, docs/exit-codes.md generated from it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest
import yaml

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.judged import answers
from reproducers import explain
from reproducers.base import glossary
from reproducers.base.verdicts import (
    EXIT_MEANING,
    EXIT_REMEDY,
    SENTINEL_MEANING,
    SENTINEL_REMEDY,
    VERDICT_MEANING,
    VERDICT_REMEDY,
    Verdict,
)
from reproducers.desk.rules.engine import meanings
from reproducers.desk.waves import classes
from reproducers.evidence import manifest, table
from reproducers.probe import checks
from reproducers.probe.checks import SENTINELS
from reproducers.record import schema
from reproducers.record.schema import ROOT
from reproducers.studies.suites import comparing
from reproducers.studies.versions import applying
from reproducers.upstream.patching import ApplyClass


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "reproducers.explain", *args], cwd=ROOT, capture_output=True, text=True
    )


ROWS = [*explain.codes(), *explain.words()]


def test_every_code_has_a_meaning_and_a_next_step():
    assert set(EXIT_MEANING) == set(EXIT_REMEDY) == set(Exit)
    assert set(VERDICT_MEANING) == set(VERDICT_REMEDY) == set(Verdict)
    assert set(SENTINEL_MEANING) == set(SENTINEL_REMEDY) == set(SENTINELS)
    rows = explain.codes()
    assert all(row.meaning and row.next_step for row in rows)
    assert len({row.code for row in rows}) == len(rows) == len(Exit) + len(Verdict) + len(SENTINELS)


def derived_states():
    """Every word that ``manifest.state`` can return: the strings of its code and those that it looks up."""
    tree = ast.parse(inspect.getsource(manifest.state))
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    strings = [node for value in returned for node in ast.walk(value) if isinstance(node, ast.Constant)]
    loops = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For)]
    strings += [node for value in loops for node in ast.walk(value) if isinstance(node, ast.Constant)]
    states = {str(node.value) for node in strings} | {*manifest.PROVED.values(), manifest.HELD}
    return {state.partition("(")[0] for state in states} - {"", ")"}


def test_every_state_of_a_pack_is_explained():
    states = derived_states()
    assert {"draft", "held", "stale", "validated", "reproduced", "fixed-upstream", "filed"} <= states
    assert states <= set(glossary.STATES)
    assert {"ready", "approved", "merged", "retired", "guard"} <= set(glossary.STATES)
    for entry in yaml.safe_load((ROOT / "manifest.yaml").read_text())["packs"].values():
        assert "state" in {row.kind for row in explain.find(entry["state"])}


def literals(hint):
    """The words of a Literal, alone or with None."""
    return {word for part in (hint, *get_args(hint)) for word in get_args(part) if isinstance(word, str)}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("outcome", literals(checks.State) | literals(checks.Outcome)),
        ("role of a check", literals(get_type_hints(checks.Check)["role"])),
        ("kind of pack", literals(schema.Pack.model_fields["kind"].annotation)),
        ("harm of a bug", literals(schema.Pack.model_fields["harm"].annotation)),
        ("way a patch applies", {item.value for item in ApplyClass}),
        ("filing decision", literals(schema.Filing.model_fields["decision"].annotation)),
        ("relation of a thread", literals(schema.Thread.model_fields["relation"].annotation)),
    ],
)
def test_every_word_of_the_records_is_explained(kind, words):
    assert words - set(glossary.GROUPS[kind]) == set()


# Words of records that nobody is shown: what a file says it is.
UNSEEN = {
    "engine",
    "packs",
    "training",
    "record",
    "stamp",
    "upstream-tests",
    "mutation score",
    "PASSED",
    "FAILED",
    "both",
    "",
}
NAMED = {"desk/gate/checklist.py": "Point", "desk/blockers.py": "Blocker"}


def sources():
    """(path below reproducers/, tree) of each module of the engine."""
    for package in ("patchlane", "reproducers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT / package).as_posix(), ast.parse(path.read_text())


def texts(nodes):
    return {
        n.value for node in nodes for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


def enumerated():
    """The words of every Literal and of every enumeration of words in the engine."""
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
                yield from ((name, word) for word in texts([node.slice]))
            if isinstance(node, ast.ClassDef) and {"StrEnum", "Enum"} & {
                getattr(base, "id", "") for base in node.bases
            }:
                values = [part.value for part in node.body if isinstance(part, ast.Assign)]
                yield from ((name, word) for word in texts(values))


def constructed():
    """The names that points of preflight and blockers are made with: a text, or a variable that holds one."""
    for file, made in NAMED.items():
        tree = dict(sources())[file]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == made]
        held = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        named = [target for node in held for target in node.targets]
        first = {ast.unparse(call.args[0]) for call in calls}
        for node, target in zip(held, named, strict=True):
            if ast.unparse(target) in first:
                yield from ((file, word) for word in texts([node.value]))
            elif (
                isinstance(target, ast.Tuple)
                and ast.unparse(target.elts[0]) in first
                and isinstance(node.value, ast.Tuple)
            ):
                yield from ((file, word) for word in texts([node.value.elts[0]]))
        yield from (
            (file, word) for call in calls for word in texts([call.args[0]]) if isinstance(call.args[0], ast.Constant)
        )


def shown():
    """The words of the tables from which verbs print."""
    yield from (("applies", word) for word in [*applying.WORDS.values(), *applying.BEST, applying.CANNOT])
    yield from (("applies", word) for word in applying.COLOURS)
    yield from (("audit", word) for word in answers.STATES)
    yield from (("upstream_tests", word) for word in comparing.WORDS)
    yield from (("waves", word) for word in classes.CLASSES)
    doctor = (ROOT / "reproducers/host/report.py").read_text()
    yield from (("doctor", word) for word in re.findall(r'"\[(?:green|red|dim)\]([a-z ]+)\[/\]"', doctor))
    lint = (ROOT / "reproducers/lint.py").read_text()
    yield from (("lint", word) for word in ("fault", "exempted", "skipped") if word in lint)


def test_every_word_that_a_verb_prints_is_explained():
    pytest.importorskip("cmarkgfm")
    found = {*enumerated(), *constructed(), *shown(), *(("lint", rule) for rule in meanings())}
    words = {word for _, word in found} - UNSEEN
    assert {
        "buggy",
        "already in",
        "code not there",
        "crash fix",
        "can run",
        "approval",
        "receipt age",
        "mended",
    } <= words
    assert {"header-grammar", "introduced", "person", "timed out"} <= words
    unknown = []
    for place, word in sorted(found):
        try:
            assert word in UNSEEN or explain.find(word)
        except PatchlaneError:
            unknown.append((place, word))
    assert unknown == []


def test_the_glossary_has_the_project_s_terms():
    wanted = "pack lane arm pin need receipt sentinel overlay lock tree pristine patched artefact probe store manifest"
    assert set(wanted.split()) <= set(glossary.TERMS)
    assert all(row.meaning for row in explain.words())
    for group in glossary.GROUPS.values():
        assert list(group) == list(dict.fromkeys(group))


@pytest.mark.parametrize("code", sorted({row.code for row in ROWS}))
def test_each_code_is_found_in_any_case(code):
    rows = explain.find(f" {code.upper()} ")
    assert rows == [row for row in ROWS if explain._plain(row.code) == explain._plain(code)]
    assert all(row.meaning in explain.text(rows) for row in rows)


def test_what_a_run_prints_is_found():
    assert [row.kind for row in explain.find("HEALTHY")] == ["outcome", "answer of a sweep"]
    assert [row.code for row in explain.find("cannot test")] == ["cannot_test", "cannot test", "cannot test"]
    assert [row.kind for row in explain.find("held(any (reason))")] == ["state"]


def test_the_pages_are_what_the_verb_prints():
    codes, words = (ROOT / "docs" / name for name in ("exit-codes.md", "glossary.md"))
    assert codes.read_text() == explain.markdown(explain.codes()), "explain --markdown > docs/exit-codes.md"
    glossed = explain.markdown(explain.words(), glossary.WORDS_PAGE)
    assert words.read_text() == glossed, "explain --glossary > docs/glossary.md"


def test_the_table_of_packs_links_to_its_states():
    assert "(../docs/glossary.md)" in table.HEADER


def test_markdown_keeps_bars_inside_their_cells():
    row = explain.Definition("verdict", "X", "a|b", "c")
    assert "| `X` | a\\|b | c |" in explain.markdown([row])


def test_command_line():
    code, page, unknown = run("77"), run("--glossary"), run("validatd")
    assert code.returncode == 0 and EXIT_MEANING[Exit.CANNOT_TEST] in code.stdout and "doctor" in code.stdout
    assert page.returncode == 0 and page.stdout == (ROOT / "docs/glossary.md").read_text()
    assert unknown.returncode == Exit.USAGE and "python -m reproducers.explain validated" in unknown.stderr
    assert "Traceback" not in unknown.stderr


def test_unknown_code_is_refused_even_when_empty():
    with pytest.raises(PatchlaneError, match="''") as caught:
        explain.find("")
    assert "python -m reproducers.explain" in caught.value.remedy
