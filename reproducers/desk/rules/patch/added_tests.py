"""A pull request adds tests where upstream keeps its own, or says why it adds none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from reproducers.desk.patches import short_header
from reproducers.desk.patches.fields import origin_fault
from reproducers.desk.patches.trees import tree_of
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.record.schema import line_of
from reproducers.upstream import patching

FOLDERS = ("tests", "test")  # of upstream's repositories
REQUIRED = ("Subject", "Pack", "Origin", "Licence")


@rule("tests-added", "a pull request adds tests.patch, or says in filing.no_tests why there is none")
def added(case: Case) -> Iterator[Breach | Skip]:
    filing, there = case.pack.filing, case.pack.tests_patch.is_file()
    line = line_of(case.record_text, ("filing", "decision"))
    if filing.decision == "pr" and case.pack.patch.is_file() and not there and not filing.no_tests:
        yield Breach(case.record, line, "a pull request without a test", "write tests.patch, or filing.no_tests: why")
    if there and filing.no_tests:
        yield Breach(case.record, line, "filing.no_tests beside a tests.patch", "take one of them out")


@rule("tests-scope", "tests.patch adds test files to upstream's own test folder, and has a whole header")
def scope(case: Case) -> Iterator[Breach | Skip]:
    path, pack = case.pack.tests_patch, case.pack
    if not path.is_file():
        return
    try:
        short, faults = short_header.scan(path)
        files = patching.files(path)
    except PatchlaneError as error:
        yield Breach(path, 1, error.what, error.remedy)
        return
    yield from (Breach(path, fault.line, fault.what, fault.remedy) for fault in faults)
    wanted = {"Pack": f"{pack.number:02d}", "Licence": pack.upstream.licence}
    for name in REQUIRED:
        value = short.fields.get(name, "")
        if not value or value != wanted.get(name, value) or (name == "Origin" and origin_fault(value)):
            yield Breach(path, short.lines.get(name, 1), f"{name} is {value!r}", f"write {name} as fix.patch has it")
    trees = [tree_of(pack, pack.pins[name], case.store) for name in case.patches]
    for file in files:
        place = Path(file.path)
        if why := _astray(place, file.is_added_file, [tree for tree in trees if tree]):
            yield Breach(path, 1, f"{file.path} {why}", "add a new test_*.py below tests/")


def _astray(file: Path, added: bool, trees: list[Path]) -> str:
    if file.parts[0] not in FOLDERS or ".." in file.parts or not file.match("test_*.py"):
        return "is no test file of upstream's test folder"
    if not added or any((tree / file).exists() for tree in trees):
        return "is there already"
    return ""
