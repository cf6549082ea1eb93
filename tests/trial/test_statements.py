"""Which lines could run, and of which statement they are."""

import difflib
import textwrap

from toy import write_tree

from reproducers.trial.statements import could_run, with_code

TEXT = '''
    """Text."""
    import os
    # a comment


    @len
    def call(
        first,
        second=None,
    ):
        """Text."""
        global seen
        if (
            first
            and second
        ):
            return sum(
                first,
            )
        else:
            try:
                pass
            except (
                ValueError,
            ):
                raise
        match first:
            case 1 | (
                2
            ):
                seen = lambda: (
                    1
                )
'''


def test_could_run(tmp_path):
    path = tmp_path / "mod.py"
    path.write_text(textwrap.dedent(TEXT).lstrip("\n"))
    spans = could_run(path)
    for line, span in {1: (1, 1), 2: (2, 2), 6: (6, 6), 7: (7, 10), 9: (7, 10), 14: (13, 16), 17: (17, 19)}.items():
        assert spans[line] == span
    for line, span in {22: (22, 22), 23: (23, 25), 26: (26, 26), 27: (27, 27), 28: (28, 30), 31: (31, 33)}.items():
        assert spans[line] == span
    assert not {3, 5, 11, 12, 20} & spans.keys()


def test_what_does_not_compile_and_what_is_not_python(tmp_path):
    for name, text in (("mod.py", "def f(:\n"), ("notes.md", "x = 1\n")):
        (tmp_path / name).write_text(text)
        assert could_run(tmp_path / name) == {}
    assert could_run(tmp_path / "absent.py") == {}


def test_a_hunk_of_comments_has_no_code(tmp_path):
    """One that removes a statement between comments has: what runs beside it has to be seen."""
    before = "# one\nx = 1\n# two\n\n\ndef f(\n    a,\n):\n    return a\n"
    for number, (old, new, kept) in enumerate(
        [
            ("# one\n", "# uno\n", False),
            ("x = 1\n", "", True),
            ("# two\n", "\n", False),
            ("    a,\n", "    a,  # three\n", True),
            ("    return a\n", "    # four\n    return a\n", False),
            ("    return a\n", '    """Text."""\n    return a\n', True),
        ]
    ):
        after, folder = before.replace(old, new), tmp_path / str(number)
        lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/mod.py", "b/mod.py")
        write_tree(folder, {"mod.py": after, "fix.patch": "".join(lines)})
        found = with_code(folder, folder / "fix.patch", 1)
        assert [hunk.name for hunk in found] == ["mod.py hunk 1"] * kept, new


def test_a_hunk_inside_a_statement_is_all_of_it(tmp_path):
    patch = "--- a/mod.py\n+++ b/mod.py\n@@ -1,4 +1,5 @@\n from os import (\n     path,\n+    sep,\n )\n x = 1\n"
    write_tree(tmp_path, {"mod.py": "from os import (\n    path,\n    sep,\n)\nx = 1\n", "fix.patch": patch})
    (hunk,) = with_code(tmp_path, tmp_path / "fix.patch", 1)
    assert (hunk.first, hunk.last) == (1, 4)


def test_a_hunk_that_only_removes_reaches_to_the_code_around_it(tmp_path):
    patch = "--- a/mod.py\n+++ b/mod.py\n@@ -3,5 +3,4 @@\n \n # two\n-x = 2\n # three\n \n"
    write_tree(tmp_path, {"mod.py": "x = (\n    1)\n\n# two\n# three\n\ny = 3\n", "fix.patch": patch})
    (hunk,) = with_code(tmp_path, tmp_path / "fix.patch", 1)
    assert (hunk.first, hunk.last) == (1, 7)


def test_a_hunk_of_what_is_not_python_is_asked_for(tmp_path):
    patch = "--- a/notes.md\n+++ b/notes.md\n@@ -1 +1 @@\n-a\n+# b\n"
    write_tree(tmp_path, {"notes.md": "# b\n", "fix.patch": patch})
    assert len(with_code(tmp_path, tmp_path / "fix.patch", 1)) == 1
