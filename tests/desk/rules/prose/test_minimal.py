"""minimal() is the first thing in a reproducer, short, alone, and quoted as it is."""

from types import SimpleNamespace

import pytest

from reproducers.desk.rules.prose.markdown import Text
from reproducers.desk.rules.prose.minimal import quoted, shape

GOOD = '''"""Claim."""

import torch

from reproducers import probe


def minimal():
    """What it shows."""
    import torch

    # of ones
    assert torch.ones(2).sum() == 2


def other():
    pass
'''
CODE = "import torch\n\n# of ones\nassert torch.ones(2).sum() == 2\n"


def case(folder, source, markdown=""):
    """What the two rules read of a pack."""
    (folder / "reproducer.py").write_text(source)
    pack = SimpleNamespace(reproducer=folder / "reproducer.py")
    return SimpleNamespace(pack=pack, body=folder / "body.md.j2", texts={"issue": Text(markdown)})


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        ("Claim", "Claim", 0),
        ("def minimal()", "X = 1\n\n\ndef minimal()", 1),
        ("def minimal()", "def smallest()", 1),
        ("def minimal()", "def minimal(p)", 1),
        ("    # of ones\n", "".join(f"    x{i} = {i}\n" for i in range(13)), 0),
        ("    # of ones\n", "".join(f"    x{i} = {i}\n" for i in range(14)), 1),
        ("    # of ones\n", f"    x = '{'y' * 94}'\n", 0),
        ("    # of ones\n", f"    x = '{'y' * 95}'\n", 1),
        ("torch.ones(2)", "other(2)", 1),
        ("    # of ones\n", "    x = [probe for y in range(2)]\n", 1),
        ("    # of ones\n", "    from reproducers import probe\n", 1),
        ("    # of ones\n", "    def f(a):\n        return a\n", 0),
    ],
)
def test_shape(tmp_path, old, new, faults):
    assert len(list(shape(case(tmp_path, GOOD.replace(old, new))))) == faults


@pytest.mark.parametrize(
    ("markdown", "faults"),
    [(f"```python\n{CODE}```\n", 0), (f"```python\n{CODE}x = 1\n```\n", 1), (f"```\n{CODE}```\n", 1), ("", 1)],
)
def test_quoted(tmp_path, markdown, faults):
    assert len(list(quoted(case(tmp_path, GOOD, markdown)))) == faults
