"""The commands, figures and variables that the pages show are real."""

import ast
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
import yaml
from pages import PAGES, help_of
from typer.testing import CliRunner

from model import describe
from model.definition.recipes import RECIPES, Recipe
from model.families.sizes import SIZES
from model.kinds.run import Options
from model.records import newest
from model.reports import benchmarks
from reproducers.record.receipt import Statement
from reproducers.record.schema import ROOT, load_packs


def commands(text):
    """(module, arguments) of every `python -m` or torchrun command of ours in ``text``."""
    found = re.findall(r"(?:python3? -m|torchrun [^`\n]*?-m) ((?:reproducers|model)\.[a-z_.]+)([^`\n|#]*)", text)
    return [(module, rest.split()) for module, rest in found]


def test_the_readme_counts_the_packs():
    text, packs = (ROOT / "README.md").read_text(), load_packs()
    states = yaml.safe_load((ROOT / "manifest.yaml").read_text())["packs"].values()
    projects = Counter(pack.upstream.repo.split("/")[1] for pack in packs)
    told = re.search(r"(\d+) packs\]\(\S+\) in (\d+) upstreams, (\d+) of", text)
    validated = sum(state["state"] == "validated" for state in states)
    assert [int(number) for number in told.groups()] == [len(packs), len(projects), validated]
    assert all(f"{name} {number}" in text for name, number in projects.items()), projects


def test_what_the_fixes_bring_is_in_the_receipts():
    rows = re.findall(
        r"\| \[(\d+)\].*? \| (.+?) \| (\S+) \| (\S+) \| \[\w+\]\((\S+)\) \|", (ROOT / "README.md").read_text()
    )
    assert len(rows) > 4
    for pack, measured, *numbers, receipt in rows:
        details = Statement.of((ROOT / receipt).read_bytes()).details
        arms = [
            {check.name: check for record in arm for check in record.checks}
            for arm in (details.pristine, details.patched)
        ]
        name = max((name for name in arms[0] if measured.startswith(name)), key=len)
        assert details.pack == int(pack) and [f"{arm[name].measured:.3g}" for arm in arms] == numbers, (pack, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_shown_is_one_that_the_verb_takes(page):
    for module, rest in commands(page.read_text()):
        said = help_of(module)
        if "Commands" in said and rest and rest[0].isalpha():
            said += help_of(module, rest[0])
        fields = {*Recipe.model_fields, *Options.model_fields}
        assert {field.partition("=")[0] for one, field in pairwise(rest) if one == "--set"} - fields == set(), page.name
        for option in re.findall(r"--[a-z][a-z-]+", " ".join(rest)):
            assert re.search(rf"{option}\b", said), f"{page.name}: {module} has no {option}"
        if module in ("model.train", "model.describe") and rest and not rest[0].startswith("-"):
            assert rest[0] in {*SIZES, *(RECIPES if module == "model.train" else ())}, f"{page.name}: {rest[0]}"


def defined(name):
    """Whether a dotted name, ``reproducers.upstream.store.Store.tree`` say, is a definition, by the source alone."""
    words, place = name.split("."), ROOT
    while words and ((place / words[0]).is_dir() or (place / f"{words[0]}.py").is_file()):
        place /= words.pop(0)
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    body = ast.parse(source.read_text()).body
    for word in words:
        definitions = {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        if word not in definitions:
            return False
        body = definitions[word].body
    return bool(words)


def test_the_journeys_name_functions_that_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:reproducers|model)(?:\.\w+){2,})`", page))
    assert len(named) > 40 and {name for name in named if not defined(name)} == set()
    assert not defined("reproducers.upstream.store.Store.no_such_thing") and not defined("reproducers.upstream.store")


def anchors(page):
    """The anchors of a page's headings, as code hosts make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page):
    lost = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        place = page.parent / file if file else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            lost.append(target)
    assert lost == []


def test_every_make_target_shown_is_there():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    shown = {name for page in PAGES for name in re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.M)}
    assert {"reproduce", "train", "test", "test-all"} <= shown <= set(targets)


@pytest.mark.parametrize("name", ["nam56r", "deepseek_v4"])
def test_a_page_of_figures_is_what_its_command_prints(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    command = re.search(r"`python -m model.describe ([^`]*)`", page)[1]
    printed = CliRunner().invoke(describe.app, command.split())
    assert printed.exit_code == 0 and page == printed.stdout, f"python -m model.describe {command} > docs/{name}.md"


def test_the_page_of_benchmarks_is_what_its_command_prints():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == benchmarks.page(newest.KEPT), benchmarks.COMMAND


def test_every_variable_that_is_read_or_set_has_a_row():
    page = (ROOT / "docs" / "environment.md").read_text()
    rows = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", "".join(re.findall(r"(?m)^\| (`[^|]+) \|", page))))
    text = "".join(
        path.read_text() for folder in ("patchlane", "reproducers", "model") for path in (ROOT / folder).rglob("*.py")
    )
    used = set(re.findall(r"""environ(?:\.get|\.setdefault)?[\[(]"(\w+)\"""", text)) - {"PATH"}
    used |= set(re.findall(r"(?:PATCHLANE|WANDB)_[A-Z]+", text))
    assert {"CUDA_HOME", "PATCHLANE_STORE", "WANDB_PROJECT"} <= used <= rows
    assert {name for name in rows if f'"{name}"' not in text} == set()


COLLECT = """
import sys, pytest

class Left:
    def pytest_deselected(self, items):
        print(*(f"left {item.nodeid}" for item in items), sep="\\n")

options = ["-p", "no:cacheprovider", "--collect-only", "-q", "-m", "not rest"]
sys.exit(pytest.main([*options, *sys.argv[1:]], plugins=[Left()]))
"""


def collected(files):
    """(files of which `make test` runs a test, files of which it leaves one)."""
    command = [sys.executable, "-c", COLLECT, *files]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [line.partition("::")[0] for line in said.splitlines() if "::" in line]
    left = {name.removeprefix("left ") for name in names if name.startswith("left ")}
    return {name for name in names if not name.startswith("left ")}, left


def test_each_gate_of_deepseek_v4_names_tests_that_make_test_runs():
    """But those that the page marks."""
    text = (ROOT / "docs" / "deepseek_v4_gates.md").read_text()
    named = re.findall(r"`pytest ([^`]*)`( †)?", text)
    due = {(f"tests/model/{word}", bool(mark)) for said, mark in named for word in said.split() if "/" in word}
    assert len(due) > 10 and any(mark for _, mark in due)
    for marked, found in zip((False, True), collected(sorted({file for file, _ in due})), strict=True):
        files = sorted(file for file, mark in due if mark is marked)
        assert [file for file in files if not any(one.startswith(file) for one in found)] == []
