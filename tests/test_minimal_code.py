"""What is taken out of a reproducer as its minimal code."""

from pathlib import Path

import pytest

from reproducers.minimal import code

HEAD = '"""Doc."""\n\nimport sys\n\n\n'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('def minimal():\n    """Doc."""\n    import torch\n\n    # why\n    assert torch\n', "import torch\n\n# why\nassert torch\n"),
        ("def minimal() -> None:\n    # why\n    for _ in range(2):\n        print(1)\n", "# why\nfor _ in range(2):\n    print(1)\n"),
        ('def minimal():\n    """Doc.\n\n    More.\n    """\n\n    x = """a\nb"""\n\n\ny = 1\n', 'x = """a\nb"""\n'),
        ('def minimal():\n    """Only a docstring."""\n', None),
        ("def other():\n    def minimal():\n        pass\n", None),
    ],
)  # fmt: skip
def test_code(tmp_path: Path, source: str, expected: str | None) -> None:
    path = tmp_path / "reproducer.py"
    path.write_text(HEAD + source)
    assert code(path) == expected
