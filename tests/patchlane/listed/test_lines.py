"""Every line of a requirements file is read, skipped with a reason, or named as not understood."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import write_tree

from patchlane.listed import formats, lines
from patchlane.listed.reading import Reading

SHA = "5be9626709af2722333bf54797c954c09edeada3"
KNOWN = {"up/toy": "toyup"}
LINES = f"""\
# a comment
--index-url https://example.org
ToyUp[extra] == 1.0 --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
other>=2  # later
third==1.*
fourth==1.0; python_version < "3.12"
fifth @ git+https://github.com/some/fifth@{SHA}
-e git+https://github.com/up/toy@v1.2#egg=toy_up
git+https://github.com/up/toy.git@v1.0
-r more/inner.txt
-c limits.txt
# Editable install with no version control (sixth==2.5)
-e /opt/sixth
./wheels/seventh-0.7.0-py3-none-any.whl
https://example.org/eighth-3.1.tar.gz
ninth @ https://example.org/ninth-1.5%2Bcu12-cp311-cp311-linux_x86_64.whl
"""
MISSED = [
    "two words",
    "--no-such-option x",
    "pinned==${V}",
    "git+https://github.com/some/thing",
    "-e .",
    "Package   Version",
]


def read(folder, text, **files):
    write_tree(folder, {"r.txt": text, **files})
    return formats.read(folder / "r.txt", KNOWN)


def test_each_form_of_a_requirement(tmp_path):
    write_tree(tmp_path, {"more/inner.txt": "tenth===2.0\n-r ../r.txt\n", "limits.txt": "other==2.2\n"})
    seen = read(tmp_path, LINES)
    said = {(x.name, x.version, x.ref, x.constraint): x.line for x in seen.required}
    assert said == {
        ("toyup", "1.0", "", False): 3,
        ("other", None, "", False): 5,
        ("third", None, "", False): 6,
        ("fourth", "1.0", "", False): 7,
        ("fifth", None, SHA, False): 8,
        ("toy-up", None, "v1.2", False): 9,
        ("toyup", None, "v1.0", False): 10,
        ("tenth", "2.0", "", False): 1,
        ("other", "2.2", "", True): 1,
        ("sixth", None, "", False): 14,
        ("seventh", "0.7.0", "", False): 15,
        ("eighth", "3.1", "", False): 16,
        ("ninth", "1.5+cu12", "", False): 17,
    }
    assert seen.unread == [] and next(x.why for x in seen.required if x.name == "sixth").endswith("2.5")


@pytest.mark.parametrize("line", MISSED)
def test_what_is_not_understood_is_named_with_its_line(tmp_path, line):
    seen = read(tmp_path, f"first==1\n\n{line}\n")
    assert [(Path(x.file).name, x.line) for x in seen.unread] == [("r.txt", 3)] and seen.unread[0].why
    assert [x.name for x in seen.required] == ["first"]


@pytest.mark.parametrize("option", ["-r ", "-c ", "--requirement=", "--constraint "])
def test_a_file_that_is_not_there_is_not_understood(tmp_path, option):
    seen = read(tmp_path, f"first==1\n{option}gone.txt\n")
    assert [x.line for x in seen.unread] == [2]


def test_a_folder_beside_says_what_it_is_and_what_it_needs(tmp_path):
    project = '[project]\nname = "Own"\ndependencies = ["toyup==1.0"]\n'
    write_tree(tmp_path, {"pyproject.toml": project})
    seen = read(tmp_path, "first==1\n-e .\n")
    assert {x.name: x.version for x in seen.required} == {"first": "1", "own": None, "toyup": "1.0"}
    assert seen.unread == []


PIECES = st.sampled_from(
    [
        "a==1",
        "# c",
        "",
        "   ",
        "-e .",
        "b c",
        "\\",
        "-r r.txt",
        "--hash=x",
        "é==1",
        "c>=1;",
        "d @ x",
        "==",
        "-",
        "e==1 \\",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=8))
def test_no_line_is_lost(rows):
    """Of each line that is not blank, or of the one that it continues, something is said."""
    seen = lines.read("\n".join(rows), Reading(Path("r.txt")))
    told = {x.line for x in (*seen.required, *seen.skipped, *seen.unread)}
    for number, row in enumerate(rows, 1):
        first = number
        while first > 1 and rows[first - 2].endswith("\\"):
            first -= 1
        if row.strip(" \\"):
            assert told & {*range(first, number + 1)}, (rows, number)


def test_the_one_version_of_a_specifier():
    found = {spec: lines.exact(spec) for spec in ("==1.0", "===1.0", "==1.*", ">=1,==1.2", "~=1.0", "", "==1,==2")}
    assert found == {
        "==1.0": "1.0",
        "===1.0": "1.0",
        "==1.*": None,
        ">=1,==1.2": "1.2",
        "~=1.0": None,
        "": None,
        "==1,==2": None,
    }
