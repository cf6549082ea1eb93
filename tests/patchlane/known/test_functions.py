"""Digests of functions: what changes them, and what must not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patchlane.known import functions as module
from patchlane.known.functions import functions

SOURCE = '''"""Module."""
import os

LIMIT = 1
if LIMIT:
    def chosen(a, *, b=None):
        """The sum."""
        return a + (b or LIMIT), f"{a!r:>{LIMIT}} {b=}", u"x"
else:
    def chosen(a, *, b=None):
        return None


class Layer(object, metaclass=type):
    """A layer."""

    scale = 2

    @property
    def size(self) -> int:
        def inner():
            return ...
        return inner() or self.scale

    class Part:
        async def go(self):
            pass
'''


def digests(text):
    return {name: function.digest for name, function in functions(text.encode()).items()}


def changed(old, new):
    """The functions whose digest a change of the source's text changes."""
    assert SOURCE.count(old) == 1
    before, after = digests(SOURCE), digests(SOURCE.replace(old, new))
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def test_names_and_lines():
    names = ["<body>", "chosen", "chosen#2", "Layer.<body>", "Layer.size", "Layer.Part.<body>", "Layer.Part.go"]
    found = functions(SOURCE.encode())
    assert list(found) == names
    assert [found[name].line for name in names] == [1, 6, 10, 14, 20, 25, 26]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""The sum."""', '"""Another text."""'),
        ('        """The sum."""\n', "        # no docstring\n"),
        ("return a + (b or LIMIT)", "return (a + (b  or\n LIMIT))"),
        ('u"x"', "'x'"),
        ("import os", "import os, sys"),
        ('"""Module."""', "# a comment\n\n"),
    ],
)
def test_layout_comments_docstrings_and_imports_change_nothing(old, new):
    assert changed(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("a + (b", "a - (b", ["chosen"]),
        ("chosen(a, *, b=None):\n        return None", "chosen(a, *, b=None):\n        return 0", ["chosen#2"]),
        ("chosen(a, *, b=None):\n        return None", "chosen(a, *, b=None):\n        return", ["chosen#2"]),
        ("return ...", "return 1", ["Layer.size"]),
        ("    @property\n", "", ["Layer.size"]),
        ("scale = 2", "scale = 3", ["Layer.<body>"]),
        ("metaclass=type", "metaclass=object", ["Layer.<body>"]),
        ("LIMIT = 1\n", "LIMIT = 2\n", ["<body>"]),
        ("go(self)", "went(self)", ["Layer.Part.go", "Layer.Part.went"]),
    ],
)
def test_each_change_of_code_changes_its_function_alone(old, new, names):
    assert changed(old, new) == names


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_every_python_gives_the_same_digests(version, tmp_path):
    places = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), Path(f"/usr/bin/python{version}")]
    python = next((place for place in places if place.is_file()), None)
    if python is None:
        pytest.skip(f"no Python {version} here")
    (tmp_path / "x.py").write_text(SOURCE)
    code = (
        "import json, runpy, sys; f = runpy.run_path(sys.argv[1])['functions'];"
        "print(json.dumps({n: v.digest for p in sys.argv[2:] for n, v in f(open(p, 'rb').read()).items()}))"
    )
    files = [str(tmp_path / "x.py"), ast_heavy()]
    sides = [
        subprocess.run([each, "-c", code, module.__file__, *files], capture_output=True, text=True, check=True)
        for each in (str(python), sys.executable)
    ]
    one, two = (json.loads(done.stdout) for done in sides)
    assert one == two and len(one) > 50


def ast_heavy():
    """A file of the suite's own dependencies with most of Python's syntax in it."""
    import typing

    return str(Path(typing.__file__))


def test_code_that_is_no_python():
    with pytest.raises(SyntaxError):
        functions(b"def f(:")
