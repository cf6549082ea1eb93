"""The commands, figures and variables that the pages show are real."""

import ast
import re

import pytest
from pages import PAGES, help_of
from typer.testing import CliRunner

from model import describe
from model.definition.recipes import RECIPES
from model.families.sizes import SIZES
from model.records import newest
from model.reports import benchmarks
from reproducers.record.schema import ROOT


def commands(text):
    """(module, arguments) of every `python -m` or torchrun command of ours in ``text``."""
    found = re.findall(r"(?:python3? -m|torchrun [^`\n]*?-m) ((?:reproducers|model)\.[a-z_.]+)([^`\n|#]*)", text)
    return [(module, rest.split()) for module, rest in found]


def test_readme_shows_every_verb():
    shown = {module for module, _ in commands((ROOT / "README.md").read_text())}
    assert {
        f"reproducers.{v}" for v in ("new", "run", "export", "doctor", "explain", "bundle", "receipts", "manifest")
    } <= shown
    assert {
        f"model.{v}" for v in ("train", "describe", "coverage", "lock", "report", "pictures", "data", "receipt")
    } <= shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_shown_is_one_that_the_verb_takes(page):
    for module, rest in commands(page.read_text()):
        said = help_of(module)
        if "Commands" in said and rest and rest[0].isalpha():
            said += help_of(module, rest[0])
        for option in re.findall(r"--[a-z][a-z-]+", " ".join(rest)):
            assert re.search(rf"{option}\b", said), f"{page.name}: {module} has no {option}"
        if module in ("model.train", "model.describe") and rest:
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


def test_every_make_target_shown_is_there():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    shown = {name for page in PAGES for name in re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.M)}
    assert {"reproduce", "train", "test", "test-all"} <= shown <= set(targets)


def test_the_page_of_figures_is_what_its_command_prints():
    page = (ROOT / "docs" / "nam56r.md").read_text()
    command = re.search(r"`python -m model.describe ([^`]*)`", page)[1]
    printed = CliRunner().invoke(describe.app, command.split())
    assert printed.exit_code == 0 and page == printed.stdout, f"python -m model.describe {command} > docs/nam56r.md"


def test_the_page_of_benchmarks_is_what_its_command_prints():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == benchmarks.page(newest.KEPT), benchmarks.COMMAND


def test_every_environment_variable_has_a_row():
    table = (ROOT / "README.md").read_text()
    sources = [path for folder in ("reproducers", "model") for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"(?:PATCHLANE|WANDB)_[A-Z]+", path.read_text())}
    assert {"PATCHLANE_STORE", "WANDB_PROJECT"} <= used and all(f"`{name}`" in table for name in used)


def test_every_variable_that_is_read_or_set_has_a_row():
    page = (ROOT / "docs" / "environment.md").read_text()
    rows = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", "".join(re.findall(r"(?m)^\| (`[^|]+) \|", page))))
    text = "".join(path.read_text() for folder in ("reproducers", "model") for path in (ROOT / folder).rglob("*.py"))
    used = set(re.findall(r"""environ(?:\.get|\.setdefault)?[\[(]"(\w+)\"""", text)) - {"PATH"}
    assert "CUDA_HOME" in used and used <= rows
    assert {name for name in rows if f'"{name}"' not in text} == set()
