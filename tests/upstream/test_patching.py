"""How a patch meets a tree."""

import re

import pytest
from toy import CORE, FIRST, SOURCE, TOTAL, diff, edited, git, named, write_tree
from unidiff.errors import UnidiffParseError

from patchlane.base.errors import PatchlaneError
from reproducers.record.receipt import Compiled, Executed, Function
from reproducers.upstream.patching import (
    ApplyClass,
    added_lines,
    classify,
    hunks,
    import_root,
    patched_tree,
    placed,
    strip_for,
    unexecuted,
)
from reproducers.upstream.store import Tree, tree_digest

FIXED = edited(TOTAL, FIRST)


@pytest.fixture
def meet(tmp_path):
    """(class of a patch text on a tree of files, the tree's folder)."""

    def run(text, files, strip=1, root=tmp_path / "tree"):
        write_tree(root, files)
        (tmp_path / "fix.patch").write_text(text)
        return classify(root, tmp_path / "fix.patch", strip).kind

    return run


def test_clean_and_already_applied(meet, tmp_path):
    patch = diff(tmp_path, SOURCE, FIXED)
    assert meet(patch, SOURCE) is ApplyClass.CLEAN
    assert meet(patch, FIXED) is ApplyClass.ALREADY_APPLIED


def test_reversed_patch_is_already_applied(meet, tmp_path):
    assert meet(diff(tmp_path, FIXED, SOURCE), SOURCE) is ApplyClass.ALREADY_APPLIED


def test_conflict(meet, tmp_path):
    assert meet(diff(tmp_path, SOURCE, FIXED), edited(("values[1:]", "values[2:]"))) is ApplyClass.CONFLICT


def test_offset_is_refused(meet, tmp_path):
    shifted = {**SOURCE, "toyup/core.py": "# a line more\n" + CORE}
    assert meet(diff(tmp_path, SOURCE, FIXED), shifted) is ApplyClass.CONFLICT


def test_fuzz_is_refused(meet, tmp_path):
    """The outermost context line differs: GNU patch would take it with fuzz 1."""
    assert meet(diff(tmp_path, SOURCE, FIXED), edited(('"""The sum."""', '"""A sum."""'))) is ApplyClass.CONFLICT


def test_whitespace_is_not_ignored_whatever_the_users_git_says(meet, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / ".gitconfig").write_text("[apply]\n\tignoreWhitespace = change\n")
    assert meet(diff(tmp_path, SOURCE, FIXED), edited(("result = 0.0", "result  =  0.0"))) is ApplyClass.CONFLICT


def test_empty_patch(meet):
    assert meet("", SOURCE) is ApplyClass.CLEAN


def test_not_a_patch(tmp_path):
    (tmp_path / "fix.patch").write_text("--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-only\n")
    with pytest.raises(PatchlaneError, match=r"fix\.patch") as caught:
        hunks(tmp_path / "fix.patch", 1, after=True)
    assert isinstance(caught.value.__cause__, UnidiffParseError)


@pytest.mark.parametrize("name", ["a/../out.txt", "/etc/out.txt", "a/toyup/../../out.txt", '"a/..\\\\../out.txt"'])
def test_a_path_outside_the_tree_is_refused(meet, name):
    with pytest.raises(PatchlaneError, match=re.escape(repr(name))):
        meet(f"--- {name}\n+++ {name}\n@@ -0,0 +1 @@\n+x\n", SOURCE)


MOVED = {"toyup/__init__.py": "", "toyup/moved.py": CORE}
SHAPES = {
    "new file": (SOURCE, {**SOURCE, "toyup/plus.py": "X = 1\n"}),
    "deleted file": ({**SOURCE, "toyup/plus.py": "X = 1\n"}, SOURCE),
    "rename with an edit": (SOURCE, {**MOVED, "toyup/moved.py": FIXED["toyup/core.py"]}),
    "first line": (SOURCE, {**SOURCE, "toyup/core.py": "import math\n" + CORE}),
    "last line removed": (SOURCE, {**SOURCE, "toyup/core.py": CORE.rsplit("    return values[0]\n", 1)[0]}),
    "no newline at the end": (SOURCE, {**SOURCE, "toyup/core.py": CORE.rstrip("\n")}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_patch_gives_the_new_tree(toy, shape):
    old, new = SHAPES[shape]
    tree = Tree(write_tree(toy.root / "old", old), tree_digest(toy.root / "old"), named("toy"))
    patch = toy.root / "fix.patch"
    patch.write_text(diff(toy.root, old, new))
    assert classify(tree.path, patch, 1).kind is ApplyClass.CLEAN
    hunks(patch, 1, after=False)
    for hunk in hunks(patch, 1, after=True):
        assert 1 <= hunk.first <= hunk.last <= len(new[hunk.path].splitlines())
    done = patched_tree(toy.store, tree, patch, 1, 7)
    assert done.digest == tree_digest(write_tree(toy.root / "new", new))
    assert tree_digest(tree.path) == tree.digest


def entry(scratch, change):
    """The good patch with one more entry, made by ``change(folder)``."""
    repo = write_tree(scratch / "entry", SOURCE)
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "old", cwd=repo)
    change(repo)
    git("add", "-A", cwd=repo)
    return diff(scratch, SOURCE, FIXED) + git("diff", "--cached", "-M", "--binary", cwd=repo)


HIDDEN = {
    "binary": lambda repo: (repo / "toyup/data.bin").write_bytes(bytes(range(256))),
    "sourceless bytecode": lambda repo: (repo / "toyup/extra.pyc").write_bytes(b"\xa7\r\r\n" + bytes(64)),
    "bytecode as text": lambda repo: (repo / "toyup/extra.pyc").write_text("x = 1\n"),
    "link": lambda repo: (repo / "toyup/more.py").symlink_to("/etc/hostname"),
    "rename": lambda repo: (repo / "toyup/__init__.py").rename(repo / "toyup/other.py"),
    "mode": lambda repo: (repo / "toyup/__init__.py").chmod(0o755),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_an_entry_that_nobody_can_watch_is_refused_by_name(toy, name):
    text = entry(toy.root, HIDDEN[name])
    (toy.root / "fix.patch").write_text(text)
    tree = write_tree(toy.root / "tree", SOURCE)
    with pytest.raises(PatchlaneError, match="toyup/"):
        classify(tree, toy.root / "fix.patch", 1)
    with pytest.raises(PatchlaneError, match="toyup/"):
        toy.run(toy.pack(text))


def test_an_empty_file_can_be_added(toy):
    (toy.root / "fix.patch").write_text(entry(toy.root, lambda repo: (repo / "toyup/new.py").touch()))
    assert classify(write_tree(toy.root / "tree", SOURCE), toy.root / "fix.patch", 1).kind is ApplyClass.CLEAN


@pytest.mark.parametrize("text", ["", None])
def test_cache_is_keyed_by_content(toy, text):
    tree = Tree(write_tree(toy.root / "old", SOURCE), tree_digest(toy.root / "old"), named("toy"))
    patch = toy.root / "fix.patch"
    patch.write_text(toy.patch(FIXED))
    first = patched_tree(toy.store, tree, patch, 1, 7)
    assert patched_tree(toy.store, tree, patch, 1, 7).path == first.path
    patch.write_text(toy.patch(edited(TOTAL)) if text is None else text)
    assert patched_tree(toy.store, tree, patch, 1, 7).path != first.path


def test_patched_tree_refuses_a_conflict(toy):
    files = edited(("values[1:]", "values[2:]"))
    tree = Tree(write_tree(toy.root / "old", files), tree_digest(toy.root / "old"), named("toy"))
    (toy.root / "fix.patch").write_text(toy.patch(FIXED))
    with pytest.raises(PatchlaneError, match="CONFLICT"):
        patched_tree(toy.store, tree, toy.root / "fix.patch", 1, 7)
    assert not list((toy.root / "store/patched").iterdir())


def test_tree_inside_another_repository(meet, tmp_path):
    """git apply run below another repository's top would skip every file silently."""
    patch = diff(tmp_path, SOURCE, FIXED)
    outer = tmp_path / "outer"
    outer.mkdir()
    git("init", "-q", cwd=outer)
    assert meet(patch, SOURCE, root=outer / "a/tree") is ApplyClass.CLEAN
    assert meet(patch, edited(("values[1:]", "values[2:]")), root=outer / "b/tree") is ApplyClass.CONFLICT


def test_strip_and_import_root(tmp_path):
    checkout, wheel = write_tree(tmp_path / "c", {"src/toyup/__init__.py": ""}), write_tree(tmp_path / "w", SOURCE)
    assert (strip_for(checkout, "src"), strip_for(wheel, "src"), strip_for(wheel, ".")) == (1, 2, 1)
    assert import_root(checkout, "src") == checkout / "src"
    assert import_root(wheel, "src") == wheel


def test_strip_finds_the_files_of_a_wheel(meet, tmp_path):
    inside = [{f"src/{name}": text for name, text in files.items()} for files in (SOURCE, FIXED)]
    assert meet(diff(tmp_path, *inside), SOURCE, strip=2) is ApplyClass.CLEAN


def test_unexecuted(tmp_path):
    (tmp_path / "fix.patch").write_text(diff(tmp_path, SOURCE, FIXED))
    first, second = hunks(tmp_path / "fix.patch", 1, after=True)
    ran = Executed(lines=[first.first], functions={}, compiled=[])
    assert unexecuted([first, second], {"toyup/core.py": ran}) == [second.name]
    assert unexecuted([first, second], {}) == [first.name, second.name]
    compiled = [Compiled(compiler="toy", first=1, last=99, sha256="")]
    assert unexecuted([first, second], {"toyup/core.py": ran.model_copy(update={"compiled": compiled})}) == []
    foreign = {"total": Function(process=["a"], tree=["b"])}
    (named_code,) = unexecuted([first], {"toyup/core.py": ran.model_copy(update={"functions": foreign})})
    assert named_code.startswith("toyup/core.py:total ")


@pytest.mark.parametrize("root", [".", "src"])
@pytest.mark.parametrize("name", ["toyfix.py", "toyfix/__init__.py", "sitecustomize.py"])
def test_a_new_top_level_module_is_refused(tmp_path, name, root):
    """It would shadow a library, and the probe's own modules too."""
    inside = "" if root == "." else f"{root}/"
    old = {f"{inside}{path}": text for path, text in SOURCE.items()}
    patch, tree = tmp_path / "fix.patch", write_tree(tmp_path / "tree", old)
    patch.write_text(diff(tmp_path, old, {**old, f"{inside}{name}": "X = 1\n"}))
    with pytest.raises(PatchlaneError, match=name):
        classify(tree, patch, 1, root)
    patch.write_text(diff(tmp_path, old, {**old, f"{inside}toyup/more/{name}": "X = 1\n"}))
    assert classify(tree, patch, 1, root).kind is ApplyClass.CLEAN


def test_a_rename_to_a_new_top_level_module_is_refused(tmp_path):
    moved = {"toyup/__init__.py": "", "toyfix.py": FIXED["toyup/core.py"]}
    (tmp_path / "fix.patch").write_text(diff(tmp_path, SOURCE, moved))
    with pytest.raises(PatchlaneError, match=r"toyfix\.py"):
        classify(write_tree(tmp_path / "tree", SOURCE), tmp_path / "fix.patch", 1)


def test_a_file_that_git_and_the_watch_name_differently_is_refused(tmp_path):
    """git writes this name in quotes and escapes: the watch would look for a file that there is not."""
    (tmp_path / "fix.patch").write_text(diff(tmp_path, SOURCE, {**FIXED, "toyup/\u00e9.py": "X = 1\n"}))
    with pytest.raises(PatchlaneError, match="other changes"):
        classify(write_tree(tmp_path / "tree", SOURCE), tmp_path / "fix.patch", 1)


SUSPECTS = [
    *("frame = sys._getframe(1)", "from sys import _getframe", "gc.get_objects()", "inspect.stack()", "_exit(0)"),
    *(
        "inspect.currentframe()",
        "import __main__",
        "import atexit",
        "os._exit(0)",
        "sys.settrace(None)",
        "import ctypes",
    ),
    *(
        "sys.monitoring.set_events(4, 0)",
        "exec(text)",
        "code = compile(text, '', '')",
        "import reproducers",
        "PATCHLANE",
    ),
]
INNOCENT = ["model.compile(x)", "re.compile('x')", "torch.compile(f)", "executor(x)", "model.exec(x)", "gc.collect()"]


@pytest.mark.parametrize("line", SUSPECTS)
def test_a_patch_that_looks_for_the_probe_is_refused(tmp_path, line):
    (tmp_path / "fix.patch").write_text(diff(tmp_path, SOURCE, {**FIXED, "toyup/plus.py": f"{line}\n"}))
    with pytest.raises(PatchlaneError, match=r"toyup/plus\.py:1 names"):
        hunks(tmp_path / "fix.patch", 1, after=True)
    (tmp_path / "fix.patch").write_text(diff(tmp_path, {**SOURCE, "toyup/plus.py": f"{line}\n"}, FIXED))
    assert hunks(tmp_path / "fix.patch", 1, after=True)


def test_a_patch_may_name_their_neighbours(tmp_path):
    new = {**FIXED, "toyup/plus.py": "".join(f"{line}\n" for line in INNOCENT)}
    (tmp_path / "fix.patch").write_text(diff(tmp_path, SOURCE, new))
    assert hunks(tmp_path / "fix.patch", 1, after=True)


def test_what_a_patch_moves_it_does_not_add(tmp_path):
    """Once for each line that it removes from the file, however deep; a line of another file is added."""
    old = {"toyup/a.py": "x = 1\ny = 2\n", "toyup/b.py": "z = 3\n"}
    new = {"toyup/a.py": "y = 2\nif y:\n    x = 1\nelse:\n    x = 1\n", "toyup/b.py": "z = 3\nx = 1\n"}
    (tmp_path / "fix.patch").write_text(diff(tmp_path, old, new))
    added = added_lines(tmp_path / "fix.patch", 1)
    assert {path: {n: text.strip() for n, text in lines.items()} for path, lines in added.items()} == {
        "toyup/a.py": {2: "if y:", 4: "else:", 5: "x = 1"},
        "toyup/b.py": {2: "x = 1"},
    }


PLACES = ["sys.argv", "__file__", "os.environ['A']", "os.getenv('A')", "Path.cwd()", "open('/proc/self/cmdline')"]


@pytest.mark.parametrize("line", PLACES)
def test_a_line_that_learns_its_place_is_named(tmp_path, line):
    (tmp_path / "fix.patch").write_text(diff(tmp_path, SOURCE, {**FIXED, "toyup/plus.py": f"X = 1\n{line}\n"}))
    (row,) = placed(tmp_path / "fix.patch")
    assert row.startswith("toyup/plus.py:2 names ")
    (tmp_path / "fix.patch").write_text(diff(tmp_path, {**SOURCE, "toyup/plus.py": f"{line}\n"}, FIXED))
    assert placed(tmp_path / "fix.patch") == []
