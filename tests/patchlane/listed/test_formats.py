"""A file's format is told by its content; what is in none is refused with the format's name and a command."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy import write_tree

from patchlane.base.errors import PatchlaneError
from patchlane.listed import formats

SAMPLES = Path(__file__).parents[2] / "kit" / "environments"
FILES = sorted(path for path in SAMPLES.rglob("*") if path.is_file())
COMMIT = "a1" * 20


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SAMPLES)) for path in FILES])
def test_a_version_is_read_of_each_format_also_without_its_name(tmp_path, path):
    """Each sample requires toyup 1.0, some a clone at a commit, and a project's own code by no version."""
    write_tree(tmp_path, {"noname": path.read_text(), "requirements.txt": "wide\n"})
    for seen in (formats.read(path, {}), formats.read(tmp_path / "noname", {})):
        found = {each.name: each for each in seen.required}
        assert found["toyup"].version == "1.0" and seen.unread == [], seen
        assert path.read_text().splitlines()[found["toyup"].line - 1].count("toyup") == 1
        if "cloned" in found:
            assert (found["cloned"].version, found["cloned"].ref) == (None, COMMIT)
        if "own" in found:
            assert found["own"].version is None and found["own"].why


def test_a_projects_tables(tmp_path):
    said = {x.name: x.version for x in formats.read(SAMPLES / "pyproject.toml", {}).required}
    assert said == {"toyup": "1.0", "cloned": None, "inner": "3", "tested": "5", "based": "6", "own": None}
    said = {x.name: x.version for x in formats.read(SAMPLES / "poetry" / "pyproject.toml", {}).required}
    assert said == {"toyup": "1.0", "wide": None, "cloned": None, "tested": "5", "own": None}


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ('[project]\nname = "own"\ndynamic = ["dependencies"]\n', 1),
        (
            '[project]\nname = "own"\ndynamic = ["dependencies"]\n'
            '[tool.setuptools.dynamic]\ndependencies = {file = "r.txt"}',
            0,
        ),
        ('[project]\nname = "own"\ndependencies = ["two words", 3]\n', 2),
        ('[dependency-groups]\na = [{include-group = "b"}]\n[project]\nname = "own"\n', 1),
        ('[project]\nname = "own"\n[tool.pixi.dependencies]\ntoyup = "1.0"\n', 1),
        ('[tool.poetry]\nname = "own"\n[tool.poetry.dependencies]\ntoyup = 3\n', 1),
        ('[project]\nname = "own"\ndynamic = true\n', 0),
        ('[project]\nname = "own"\n[tool.unidep]\ndependencies = ["toyup==1.0"]\n', 1),
        ('[project]\nname = "own"\n[tool.uv.workspace]\nmembers = ["a"]\n', 1),
        ('[build-system]\nrequires = ["x"]\n[dependency-groups]\na = ["toyup==1.0"]\n', 1),
    ],
)
def test_what_of_a_project_is_not_understood(tmp_path, text, unread):
    write_tree(tmp_path, {"pyproject.toml": text, "r.txt": "toyup==1.0\n"})
    assert len(formats.read(tmp_path / "pyproject.toml", {}).unread) == unread


def test_a_groups_line_is_found_however_it_is_written(tmp_path):
    text = "[project]\nname = 'x'\n[dependency-groups]\ndev = [\n  \"toyup == 1.0 ; python_version>'3'\",\n]\n"
    (tmp_path / "pyproject.toml").write_text(text)
    found = formats.read(tmp_path / "pyproject.toml", {}).required[0]
    assert (found.version, found.line) == ("1.0", 5)


def test_overrides_and_sources_count_by_the_plain_name(tmp_path):
    project = (
        '[project]\nname = "own"\ndependencies = ["Toy_Up==1.0", "b==1"]\n[tool.uv]\noverride-dependencies = ["b==2"]\n'
    )
    sources = f'[tool.uv.sources]\ntoy-up = {{ git = "https://github.com/up/toy", rev = "{COMMIT}" }}\n'
    write_tree(tmp_path, {"pyproject.toml": project + sources})
    said = {x.name: x.version or x.ref for x in formats.read(tmp_path / "pyproject.toml", {}).required}
    assert said == {"toy-up": COMMIT, "b": "2", "own": ""}


@pytest.mark.parametrize("entry", ['"vcs_info": "x"', '"dir_info": []', '"dir_info": {}'])
def test_a_folder_that_pip_tells_is_no_version(tmp_path, entry):
    url = f'{{"url": "u", {entry}}}'
    row = f'{{"metadata": {{"name": "a", "version": "1"}}, "direct_url": {url}}}'
    (tmp_path / "i.json").write_text(f'{{"pip_version": "1", "installed": [{row}]}}')
    (seen,) = formats.read(tmp_path / "i.json", {}).required
    assert (seen.version is None) == ("dir_info" in entry)


def test_a_conda_specification_with_one_sign_names_no_one_version(tmp_path):
    write_tree(tmp_path, {"e.yml": "dependencies:\n- pytorch=2.9\n- a==1.0\n- {b: 1}\n- 'c[version=1]'\n"})
    seen = formats.read(tmp_path / "e.yml", {})
    assert {x.name: x.version for x in seen.required} == {"torch": None, "a": "1.0"} and len(seen.unread) == 2


def test_entries_of_no_known_form_are_named(tmp_path):
    lock = (
        'version = 1\nrequires-python = ">=3.11"\n[[package]]\nname = "a"\nversion = "1"\n[[package]]\nname = "odd"\n'
    )
    write_tree(tmp_path, {"uv.lock": lock, "l.json": '[{"name": "a", "version": "1"}, {"name": "b", "version": 2}]'})
    assert [x.line for x in formats.read(tmp_path / "uv.lock", {}).unread] == [7]
    assert len(formats.read(tmp_path / "l.json", {}).unread) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_marks_and_line_ends_of_other_systems(tmp_path, encoding, end):
    (tmp_path / "r.txt").write_bytes(f"toyup==1.0{end}other==2{end}".encode(encoding))
    seen = formats.read(tmp_path / "r.txt", {})
    assert [(x.name, x.version, x.line) for x in seen.required] == [("toyup", "1.0", 1), ("other", "2", 2)]


DEEP = "[" * 100_000
REFUSED = {
    "setup.py": ["from setuptools import setup"],
    "Pipfile": ["[packages]"],
    "a.ipynb": ["{}"],
    "README.md": ["# x"],
    "x.yaml": ["services: {}"],
    "x.json": ["{}", DEEP],
    "uv.lock": ["not toml ="],
    "poetry.lock": ["[a]\nb = 1"],
    "x.toml": ["a = 1", f"a = {DEEP}"],
    "e.yml": ["a: " + DEEP[:5000]],
    "pylock.toml": ['lock-version = "1.0"\npackages = []'],
    "pixi.toml": ["[dependencies]"],
    "Cargo.lock": ["version = 4"],
    "tox.ini": ["[tox]"],
    "Makefile": ["all:"],
    "x.lock": ['version = 4\n[[package]]\nname = "a"\nversion = "1"'],
    "r.txt": ["", " \n\n", "# nothing\n", "two words\nmore of them\n", "a\0b"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts])
def test_any_other_file_is_refused_with_its_name_and_a_remedy(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(PatchlaneError) as refused:
        formats.read(tmp_path / name, {})
    assert name in refused.value.what and refused.value.remedy and refused.value.exit_code == 2


def test_text_in_another_encoding_is_told_from_what_is_no_text(tmp_path):
    texts = {"a.txt": (b"toyup==1.0\n\xe9\n", "iconv -f "), "b.txt": (b"\x7fELF\0\xff", "pip freeze")}
    for name, (content, remedy) in texts.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PatchlaneError) as refused:
            formats.read(tmp_path / name, {})
        assert remedy in refused.value.remedy


def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes(b"\xff\xfeq\xe9")
    for place in (tmp_path / "fifo", tmp_path, tmp_path / "absent", tmp_path / "latin"):
        with pytest.raises(PatchlaneError) as refused:
            formats.read(place, {})
        assert refused.value.remedy


PIECES = st.sampled_from(
    [*"\"'[]{}=#;|&`)@\n\t\\", "==", "$(", "<<EOF\n", "EOF\n", "null", "3", "- ", ": ", "-r x", "${A", "//[", "é"]
)
EDITS = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 20), st.one_of(PIECES, st.just(""))), min_size=1, max_size=6
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(FILES), edits=EDITS)
def test_a_damaged_file_is_read_or_refused(tmp_path, path, edits):
    text = path.read_text()
    for place, gone, added in edits:
        text = text[: place % len(text + " ")] + added + text[place % len(text + " ") + gone :]
    (tmp_path / path.name).write_text(text)
    try:
        seen = formats.read(tmp_path / path.name, {})
    except PatchlaneError as refused:
        assert refused.what and refused.remedy
    else:
        assert seen.required and all(line.why for line in seen.unread)
