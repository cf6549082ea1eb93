"""The Python that an upstream asks for, as each kind of tree says it."""

import pytest
from toy import write_tree

from reproducers.desk.rules.attached import required


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({"toyup-1.0.dist-info/METADATA": "Name: toyup\nRequires-Python: >=3.12\n\ntext\n"}, ">=3.12"),
        ({"PKG-INFO": "Name: toyup\nRequires-Python: <4,>=3.10\n"}, "<4,>=3.10"),
        ({"pyproject.toml": '[project]\nrequires-python = ">=3.11"\n'}, ">=3.11"),
        ({"toyup-1.0.dist-info/METADATA": "Name: toyup\n\nRequires-Python: >=3.12\n"}, None),
        ({"pyproject.toml": "[build-system]\nrequires = []\n"}, None),
        ({}, None),
    ],
)
def test_required(tmp_path, files, asked):
    found = required(write_tree(tmp_path, files))
    assert found == asked if asked is None else str(found) == asked
