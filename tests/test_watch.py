"""Proof of execution: lines, functions, and code that is not the tree's."""

import sys
import threading

import pytest
from toy import write_tree

from reproducers.watch import Watch, code_sha256, file_functions

TEXT = """def outer(flag):
    def inner(x):
        if flag:
            return x + 1
        return x - 1

    return inner(1)


class Thing:
    def method(self):
        return {"a", "b"}


def outer(flag):
    y = outer_helper(flag)
    return y


def outer_helper(flag):
    return [i for i in range(3)] if flag else 0
"""


@pytest.fixture
def watched(tmp_path):
    """Run a call on the module under a watch of these ranges; returns the file's report."""

    def run(spans, call, text=TEXT):
        write_tree(tmp_path, {"mod.py": text})
        watch, names = Watch(tmp_path, {"mod.py": spans}), {}
        old = sys.gettrace()
        watch.start()
        try:
            exec(compile(text, str((tmp_path / "mod.py").resolve()), "exec"), names)
            call(names)
        finally:
            watch.stop()
            sys.settrace(old)
        return watch.report()["mod.py"]

    return run


def trusted(seen):
    return all(set(f["process"]) <= set(f["tree"]) for f in seen["functions"].values())


def test_lines_and_hashes(watched):
    seen = watched([[21, 21]], lambda m: m["outer"](1))
    assert seen["lines"] == [21]
    assert "outer_helper" in seen["functions"]
    assert trusted(seen)


def test_a_name_defined_twice(watched):
    seen = watched([[16, 17]], lambda m: m["outer"](1))
    assert len(seen["functions"]["outer"]["tree"]) == 2
    assert trusted(seen)


def test_nested_function(watched):
    text = TEXT.replace("def outer(flag):\n    y", "def other(flag):\n    y")
    seen = watched([[4, 4]], lambda m: m["outer"](1), text)
    assert list(seen["functions"]) == ["outer.<locals>.inner"]
    assert watched([[5, 5]], lambda m: m["outer"](1), text)["lines"] == []


def test_other_threads(watched):
    def call(module):
        thread = threading.Thread(target=module["outer"], args=(1,))
        thread.start()
        thread.join()

    assert watched([[21, 21]], call)["lines"] == [21]


def test_not_executed(watched):
    seen = watched([[12, 12]], lambda m: m["outer"](1))
    assert seen["lines"] == []
    assert seen["functions"] == {}


def test_importing_a_function_does_not_execute_it(watched):
    """Its ``def`` line runs at import; its header counts once it is called, its decorators at once."""
    text = "def deco(f):\n    return f\n\n\n@deco\ndef far(\n    x=1,\n):\n    return x\n\n\ndef near(): return 2\n"
    assert watched([[6, 9], [12, 12]], lambda m: None, text)["lines"] == []
    assert watched([[5, 9]], lambda m: None, text)["lines"] == [5]
    assert watched([[7, 7]], lambda m: m["far"](), text)["lines"] == [7]
    assert watched([[12, 12]], lambda m: m["near"](), text)["lines"] == [12]


def test_replaced_at_run_time(watched, tmp_path):
    """Code of the same name, file and line that the tree does not hold is reported with a hash of its own."""

    def call(module):
        forged = TEXT.replace("range(3)", "range(4)")
        exec(compile(forged, str((tmp_path / "mod.py").resolve()), "exec"), module)
        module["outer"](1)

    seen = watched([[21, 21]], call)
    assert seen["lines"] == [21]
    assert not trusted(seen)


def test_replaced_from_elsewhere_is_not_executed(watched):
    seen = watched([[21, 21]], lambda m: (m.__setitem__("outer_helper", lambda flag: 0), m["outer"](1)))
    assert seen["lines"] == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring needs no early stop")
def test_tracing_stops_once_every_range_was_hit(watched):
    during = []
    watched([[21, 21]], lambda m: (during.append(sys.gettrace()), m["outer"](1), during.append(sys.gettrace())))
    assert during[0] is not None
    assert during[1] is None


def test_no_ranges_no_tracing(tmp_path):
    before = sys.gettrace()
    watch = Watch(tmp_path, {})
    watch.start()
    assert sys.gettrace() is before
    watch.stop()
    assert watch.report() == {}


def test_missing_and_foreign_files(tmp_path):
    write_tree(tmp_path, {"kernel.cu": "not python"})
    report = Watch(tmp_path, {"kernel.cu": [[1, 1]], "gone.py": [[1, 1]]}).report()
    assert [entry["lines"] for entry in report.values()] == [[], []]


def test_hash_is_of_meaning_not_of_place(tmp_path):
    one, two = write_tree(tmp_path / "1", {"m.py": TEXT}), write_tree(tmp_path / "2", {"m.py": "\n\n" + TEXT})
    assert file_functions(one / "m.py") == file_functions(two / "m.py")
    codes = [compile(f"def f(): return {value}", "x", "exec") for value in (1, 2)]
    assert len({code_sha256(code) for code in codes}) == 2
