"""Every command, option, target, page and pack that our own code names is there: a remedy has to work."""

import ast
import re
import runpy
import shlex
import warnings
from functools import cache

import pytest
import typer
from typer.testing import CliRunner

from reproducers.__main__ import verbs
from reproducers.base import cli
from reproducers.record.schema import ROOT, load_packs

SOURCES = [path for folder in ("patchlane", "reproducers", "model") for path in sorted((ROOT / folder).rglob("*.py"))]
HOLE = "X"  # stands for a value put in when the program runs
END = r"(?=[,;:)`\"]|$| then | or | and | && )"
OURS = re.compile(rf"python3? -m (reproducers|model)\.([a-z_]+)\b(.*?){END}", re.M)
FOREIGN = re.compile(r"\b(?:git|pip install|uv|torchrun|nvcc|ruff|lm_eval)\b.*?(?:[,;`]|$)", re.M)
MAKE = re.compile(r"(?:^|[`:] ?)make (?!room\b)([a-z-]+)(?=[,;`]| [A-Z]+=|$)", re.M)
REMEDIED = (
    "PatchlaneError",
    "CannotTestHere",
    "StoreError",
    "NoSuchRelease",
    "CannotTest",
    "Blocker",
    "Point",
    "Breach",
    "StrayLine",
)


def text_of(node):
    """What a string expression says, each value that is put in being HOLE; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
    return None


@cache
def literals():
    """(place, text, whether it is a remedy) of every string in our sources."""
    rows = []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1]
        names = {id(call.args[-1]): getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            text = text_of(node) if id(node) not in parts else None
            if text is not None:
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                rows.append((place, text, names.get(id(node)) in REMEDIED))
    return rows


@cache
def command_of(package, verb):
    """The click command of a verb: what it hands to ``guarded`` when it is run."""
    seen = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy's, of a module that a test has imported
        patch.setattr(cli, "guarded", seen.append)
        patch.setattr("sys.argv", [verb])
        runpy.run_module(f"{package}.{verb}", run_name="__main__")
    return typer.main.get_command(seen[0])


def subcommands(command):
    """{name: command} of a verb that has several; typer's groups are not always click's."""
    return getattr(command, "commands", {})


def options_of(command):
    """Every option of a command and of its subcommands."""
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return own.union({"--help"}, *(options_of(below) for below in subcommands(command).values()))


@cache
def known_options():
    """Every option of every verb, and of a reproducer's own command line."""
    ours = {
        name
        for package in ("reproducers", "model")
        for verb in verbs(ROOT / package)
        for name in options_of(command_of(package, verb))
    }
    source = (ROOT / "reproducers").rglob("*.py")
    return ours.union(*(re.findall(r"add_argument\(\"(--[a-z-]+)\"", path.read_text()) for path in source))


def words_of(rest):
    """The words of a command line as it stands in a text."""
    return shlex.split(re.sub(r"['…\[\]]", " ", rest))


NAMED = [(place, *match.groups()) for place, text, _ in literals() for match in OURS.finditer(text)]


@pytest.mark.parametrize("package", ["reproducers", "model"])
def test_every_command_that_is_named_is_one_that_its_verb_takes(package):
    faults = []
    for place, of, verb, rest in NAMED:
        if of != package or verb == HOLE:
            continue
        if verb not in verbs(ROOT / of):
            faults.append(f"{place}: there is no {of}.{verb}")
            continue
        command, words = command_of(of, verb), words_of(rest)
        if subcommands(command) and words and words[0] != HOLE:
            command = subcommands(command).get(words[0], command)
            if command.name != words[0]:
                faults.append(f"{place}: {of}.{verb} has no {words[0]}")
        faults += [
            f"{place}: {of}.{verb} has no {word}"
            for word in words
            if word.startswith("-") and word != "-" and word.partition("=")[0] not in options_of(command)
        ]
    assert len(NAMED) > 50 and not faults, "\n".join(faults)


def test_every_word_that_is_to_be_explained_is_known():
    explain = runpy.run_module("reproducers.explain")["app"]
    for place, _, verb, rest in NAMED:
        for word in words_of(rest)[:1] if verb == "explain" else ():
            if word not in (HOLE, "CODE", "WORD"):
                assert CliRunner().invoke(explain, [word]).exit_code == 0, f"{place}: explain {word}"


def test_every_option_of_a_remedy_is_one_of_ours():
    faults = [
        f"{place}: {option}"
        for place, text, remedy in literals()
        if remedy
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", FOREIGN.sub("", text))
        if option not in known_options()
    ]
    assert not faults, "\n".join(faults)


def test_every_target_of_make_is_in_the_makefile():
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split())
    named = {(place, name) for place, text, _ in literals() for name in MAKE.findall(text)}
    assert {name for _, name in named} >= {"setup"}
    assert not [row for row in named if row[1] not in targets]


def test_every_page_and_pack_that_is_named_is_there():
    packs = {pack.id for pack in load_packs()}
    folders = {path.name for path in (ROOT / "packs").iterdir()}
    for place, text, _ in literals():
        for page in re.findall(r"(?<![\w/])docs/[\w-]+\.md", text):
            assert (ROOT / page).is_file(), f"{place}: {page}"
        for folder in re.findall(r"(?<![\w/])packs/(\d\d_\w+)", text):
            assert folder in folders, f"{place}: packs/{folder}"
    for place, _, _, rest in NAMED:
        assert set(re.findall(r"\bpack\d+\b(?!\.)", rest)) <= packs, place
