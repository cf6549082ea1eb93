"""What is taken out of a reproducer as its minimal code."""

from pathlib import Path

import pytest

from reproducers.desk.text.minimal import code

HEAD = '"""Doc."""\n\nimport sys\n\n\n'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('def minimal():\n    """Doc."""\n    a = 1\n\n    # why\n    del a\n', "a = 1\n\n# why\ndel a\n"),
        ("def minimal() -> None:\n    # why\n    while next():\n        pass\n", "# why\nwhile next():\n    pass\n"),
        ('def minimal():\n    """Doc.\n\n    More.\n    """\n\n    x = """a\nb"""\n\n\ny = 1\n', 'x = """a\nb"""\n'),
        ('def minimal():\n    """Only a docstring."""\n', None),
        ("def other():\n    def minimal():\n        pass\n", None),
    ],
)
def test_code(tmp_path: Path, source: str, expected: str | None) -> None:
    path = tmp_path / "reproducer.py"
    path.write_text(HEAD + source)
    assert code(path) == expected
