"""Which lines could run, and of which statement they are."""

import textwrap

from reproducers.trial.statements import could_run, with_code
from reproducers.upstream.patching import Hunk

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
    text = "x = [\n    1,\n    # one\n    2,\n]\n\n# two\ndef f(\n    a,  # three\n):\n"
    (tmp_path / "mod.py").write_text(f'{text}    """Text.\n\n    More.\n    """\n')
    hunks = [Hunk(str(line), "mod.py", line, line) for line in (2, 3, 5, 6, 7, 9, 12, 13)]
    assert [hunk.first for hunk in with_code(tmp_path, hunks)] == [2, 5, 9, 12, 13]
    other = [Hunk("a", "notes.md", 1, 1), Hunk("b", "absent.py", 1, 1)]
    assert with_code(tmp_path, other) == other
