"""The commands, figures and variables that the pages show are real."""

import json
import re

import pytest
from pages import PAGES, help_of
from typer.testing import CliRunner

from model.definition import parameters
from model.definition.recipes import RECIPES
from model.definition.sizes import SIZES
from model.reports import description
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


def test_readme_says_what_ran_on_gpus():
    kept = {path.name for path in (ROOT / "receipts" / "train").iterdir()}
    known = ("1xh200_quarter", "2xh200_nam56r", "2xh200_wide", "2xh200_quarter", "4xh200_nam56r", "4xh200_wide")
    assert all(name.startswith(known) for name in kept), f"say in README, Training, what else ran: {kept}"
    said = re.findall(r"model\.report receipts/train/(\w+)", (ROOT / "README.md").read_text())
    assert said and set(said) <= kept


def figures(receipt):
    """What a kept run reached, as the pages write it."""
    kept = json.loads((ROOT / "receipts" / "train" / receipt / "receipt.json").read_text())["summary"]
    said = [f"{kept['tokens_per_s_per_gpu']:,.0f}"]
    if kept.get("peaks_gib") and kept["steps"] >= 50:  # runs that are more than an arm
        said += [f"{kept['tflops_megatron']:.0f}, {kept['tflops_built']:.0f}", f"{kept['valid_loss']:.2f}"]
        said += [", ".join(f"{peak:.1f}" for peak in kept["peaks_gib"])]
        said += [f"{kept['tokens_per_s_per_gpu'] / 9314:.3f}"] if receipt.startswith("4xh200_wide") else []
    return said


def test_what_is_said_of_a_kept_run_is_what_its_receipt_says():
    page = (ROOT / "docs" / "training.md").read_text()
    rows = re.findall(r"^\|(.*)\| `(\w+)` \|$", page, re.M)
    rows = [(row, name) for row, name in rows if (ROOT / "receipts" / "train" / name).is_dir()]
    assert len(rows) >= 9
    for row, name in rows:
        cells = [cell.strip() for cell in row.split("|")]
        assert set(figures(name)) <= set(cells), f"{name}: {figures(name)}"
    readme = (ROOT / "README.md").read_text()
    for name in re.findall(r"model\.report receipts/train/(4x\w+)", readme):
        assert figures(name)[0] in readme, f"README: {name} {figures(name)[0]}"


def test_every_make_target_shown_is_there():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    shown = {name for page in PAGES for name in re.findall(r"(?:^    |`)make ([a-z]+)", page.read_text(), re.M)}
    assert {"reproduce", "train", "test"} <= shown <= set(targets)


def test_the_page_of_figures_is_what_its_command_prints():
    page = (ROOT / "docs" / "nam56r.md").read_text()
    command = re.search(r"`python -m model.describe ([^`]*)`", page)[1]
    printed = CliRunner().invoke(description.app, command.split())
    assert printed.exit_code == 0 and page == printed.stdout, f"python -m model.describe {command} > docs/nam56r.md"


def test_why_the_total_is_what_it_is():
    page = (ROOT / "docs" / "training.md").read_text()
    table = page[page.index("| term | parameters |") :].split("\n\n")[0]
    said = [int(text.replace(",", "").replace("−", "-")) for text in re.findall(r"\| (−?[\d,]+) \|$", table, re.M)]
    size = SIZES["nam56r"]
    rows = parameters.ngram(size) // size.ngram.dim - size.hidden * 16  # 16 tables, each 16 wide into the projection
    sharing = sum(layer.indices_from not in (None, layer.number) for layer in size.layers)
    assert rows == 7_998_862
    assert said[1:4] == [
        (rows - 16 * size.ngram.rows) * size.ngram.dim,
        -sharing * parameters.indexer(size),
        -size.count("mamba3") * size.hidden,
    ]
    assert sum(said[:-1]) == said[-1] == parameters.total(size)
    assert f"Why the total is {said[-1]:,}" in page


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
