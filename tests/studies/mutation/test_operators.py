"""What each operator makes of a line, and what is no mutant: other lines, docstrings, what compiles to the same."""

import textwrap

import pytest

from reproducers.studies.mutation.generated import in_file
from reproducers.studies.mutation.operators import OPERATORS
from reproducers.studies.mutation.source import Source


def mistakes(operator, line):
    """Every text that an operator makes of a line in a function."""
    text = f"def f(self, a, b, c=1):\n    {line}\n    return a\n"
    source = Source(text, frozenset({2}))
    edits = [e for node, _ in source.nodes() for e in OPERATORS[operator](source, node) if source.within(e)]
    return [source.edited(edit).splitlines()[1:-1] for edit in edits]


@pytest.mark.parametrize(
    ("operator", "line", "due"),
    [
        ("arithmetic", "x = (a) + (b)", ["x = (a) - (b)"]),
        ("arithmetic", "x = a * b", ["x = a / b", "x = a + b"]),
        ("arithmetic", "x = a // b", ["x = a / b", "x = a * b"]),
        ("arithmetic", "x -= b", ["x += b"]),
        ("arithmetic", "x = -a", ["x = a"]),
        ("arithmetic", "x = 'ü' + b @ a", ["x = 'ü' - b @ a", "x = 'ü' + b * a"]),
        ("comparison", "x = a < b", ["x = a <= b", "x = a >= b"]),
        ("comparison", "x = a is  not None", ["x = a is None"]),
        ("comparison", "x = a not in b", ["x = a in b"]),
        ("comparison", "x = a == b != c", ["x = a != b != c", "x = a == b == c"]),
        ("boolean", "x = a and b and c", ["x = a or b and c", "x = a and b or c"]),
        ("boolean", "x = not (a or b)", ["x = (a or b)", "x = not (a and b)"]),
        ("constant", "x = a[3]", ["x = a[4]", "x = a[2]", "x = a[0]"]),
        ("constant", "x = a[0]", ["x = a[1]", "x = a[(-1)]", "x = a[0]"]),
        ("constant", "x = 0.5", ["x = 1.5", "x = (-0.5)", "x = 0.0"]),
        ("constant", "x = True, None, 's'", ["x = False, None, 's'"]),
        ("axis", "x = a.sum(dim=-2)", ["x = a.sum(dim=0)", "x = a.sum(dim=1)", "x = a.sum(dim=-1)"]),
        ("axis", "x = a.size(2)", ["x = a.size(0)", "x = a.size(1)", "x = a.size(-1)"]),
        ("axis", "x = f(2)", []),
        ("dtype", "x = a.to(torch.float32)", ["x = a.to(torch.bfloat16)", "x = a.to(torch.float64)"]),
        ("dtype", "x = a.long()", ["x = a.int()"]),
        ("dtype", "x = 'int32'", ["x = 'int64'"]),
        ("dtype", "x = float(a)", []),
        ("statement", "a.add_(b)", ["pass"]),
        ("statement", "'only said'", []),
        ("statement", "import os", []),
        ("condition", "if a: b()", ["if True: b()", "if False: b()"]),
        ("condition", "x = a if b else c", ["x = a if True else c", "x = a if False else c"]),
        ("condition", "x = [i for i in a if i]", ["x = [i for i in a if True]", "x = [i for i in a if False]"]),
        ("condition", "while a: b()", ["while False: b()"]),
        ("swap", "x = f(a, (b), *c)", ["x = f(b, (a), *c)"]),
        ("keyword", "x = f(a, p=1, q=(2))", ["x = f(a, q=(2))", "x = f(a, p=1)"]),
        ("keyword", "x = f(p=(a),)", ["x = f()"]),
        ("keyword", "x = f(p=a, **b)", ["x = f(**b)"]),
        ("keyword", "x = f((p), q=1)", ["x = f((p))"]),
        ("constant", "raise ValueError(f'{a + 1}', 2)", []),
        ("constant", "x: a[1] = b", []),
    ],
)
def test_what_an_operator_makes(operator, line, due):
    assert ["\n".join(rows).strip() for rows in mistakes(operator, line)] == due


def test_an_early_return_gives_back_the_first_argument_or_nothing():
    assert mistakes("return", "x = a") == [["    return a", "    x = a"], ["    return None", "    x = a"]]
    assert mistakes("return", "return b")[-1] == ["    return None"]
    text = textwrap.dedent('''
        def f(a):
            """Says."""
            x = 1
            if a:
                y = 2
                z = 3
            return x
    ''')
    found = in_file("m.py", text, frozenset({4, 6, 7}))
    places = [(m.line, m.after.splitlines()[m.line - 1].strip()) for m in found if m.name.startswith("return-")]
    assert places == [(4, "return None"), (4, "return a"), (6, "return None"), (6, "return a")]


TEXT = '''def f(a, b):
    """Add 1."""
    x = a + 1
    y = a + 1
    if b:
        x = x * 2
    return x - y


def g(t):
    return f(t, b=True)
'''


def test_only_added_lines_are_touched():
    whole = in_file("m.py", TEXT, frozenset(range(1, 12)))
    some = in_file("m.py", TEXT, frozenset({6}))
    assert {mutant.line for mutant in some} == {6} < {mutant.line for mutant in whole}
    for mutant in some:
        before, after = TEXT.splitlines(), mutant.after.splitlines()
        assert before[:5] == after[:5] and before[6:] == after[-5:], mutant.diff
    assert in_file("m.py", TEXT, frozenset()) == []


def test_each_mutant_compiles_to_something_of_its_own():
    text = "def f(a):\n    x = a + 0\n    if a:\n        pass\n    return x\n"
    found = in_file("m.py", text, frozenset(range(1, 6)))
    changes = [mutant.after.splitlines()[mutant.line - 1].strip() for mutant in found]
    assert changes.count("x = a + 1") == 1 and "x = a + 0" not in changes  # 0 to 0 is no change
    assert len({mutant.after for mutant in found}) == len(found)
    one, two = (
        in_file("m.py", f"def f(a, b):\n    x = {line}\n    return x\n", frozenset({2}))
        for line in ("g(dim=2)", "g(2)")
    )
    assert [m.after.count("dim=0") for m in one].count(1) == 1, "axis 0 and constant 0 are the same mutant"
    assert all("pass" in m.after or "2" not in m.after or "return" in m.name for m in two)


def test_names_are_the_same_when_other_lines_move():
    moved = "# a comment\n\n" + TEXT
    before = in_file("m.py", TEXT, frozenset(range(1, 12)))
    after = in_file("m.py", moved, frozenset(range(3, 14)))
    assert [m.name for m in before] == [m.name for m in after] and len({m.name for m in before}) == len(before)
    assert [m.line + 2 for m in before] == [m.line for m in after]
    assert {m.name for m in in_file("n.py", TEXT, frozenset({3}))}.isdisjoint(m.name for m in before)
