"""Proof of execution: lines, functions, and code that is not the tree's."""

import _thread
import inspect
import sys
import threading
import types
from typing import Any

import pytest
from toy import write_tree

from reproducers.probe.codehash import code_sha256, file_functions
from reproducers.probe.watch import Watch

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


def trusted(report):
    return all(set(f["process"]) <= set(f["tree"]) for f in report["functions"].values())


def test_lines_and_hashes(watched):
    report = watched([[21, 21]], lambda m: m["outer"](1))
    assert report["lines"] == [21]
    assert "outer_helper" in report["functions"]
    assert trusted(report)


def test_a_name_defined_twice(watched):
    report = watched([[16, 17]], lambda m: m["outer"](1))
    assert len(report["functions"]["outer"]["tree"]) == 2
    assert trusted(report)


def test_nested_function(watched):
    text = TEXT.replace("def outer(flag):\n    y", "def other(flag):\n    y")
    report = watched([[4, 4]], lambda m: m["outer"](1), text)
    assert list(report["functions"]) == ["outer.<locals>.inner"]
    assert watched([[5, 5]], lambda m: m["outer"](1), text)["lines"] == []


def test_other_threads(watched):
    def call(module):
        thread = threading.Thread(target=module["outer"], args=(1,))
        thread.start()
        thread.join()

    assert watched([[21, 21]], call)["lines"] == [21]


def test_not_executed(watched):
    report = watched([[12, 12]], lambda m: m["outer"](1))
    assert report["lines"] == []
    assert report["functions"] == {}


def test_importing_a_function_does_not_execute_it(watched):
    """Its ``def`` line runs at import; its header counts once it is called, its decorators at once."""
    text = "def deco(f):\n    return f\n\n\n@deco\ndef far(\n    x=1,\n):\n    return x\n\n\ndef near(): return 2\n"
    assert watched([[6, 9], [12, 12]], lambda m: None, text)["lines"] == []
    assert watched([[5, 9]], lambda m: None, text)["lines"] == [5]
    assert watched([[7, 7]], lambda m: m["far"](), text)["lines"] == [7]
    assert watched([[12, 12]], lambda m: m["near"](), text)["lines"] == [12]


def test_a_call_runs_the_docstring_too(watched):
    text = 'def far(\n    x=1,\n):\n    """One.\n\n    Two.\n    """\n    return x\n\n\ndef bare():\n    """One."""\n'
    assert watched([[5, 6]], lambda m: None, text)["lines"] == []
    assert watched([[5, 6]], lambda m: m["far"](), text)["lines"] == [5, 6]
    assert watched([[12, 12]], lambda m: m["bare"](), text)["lines"] == [12]


def test_the_header_of_a_rewritten_copy(tmp_path):
    """Triton's interpreter runs a copy that has no decorator, so that it begins at another line."""
    text = "def deco(f):\n    return f\n\n\n@deco\ndef kernel(\n    x=1,\n):\n    return x\n"
    path, made = write_tree(tmp_path, {"mod.py": text}) / "mod.py", dict[str, Any]()
    watch, copy = Watch(tmp_path, {"mod.py": [[7, 7]]}), dict[str, Any]()
    exec(compile(text, str(path), "exec"), made)
    exec(compile(text.replace("@deco", ""), str(path), "exec"), copy)
    watch.origins[copy["kernel"].__code__] = made["kernel"].__code__
    old = sys.gettrace()
    watch.start()
    try:
        copy["kernel"]()
    finally:
        watch.stop()
        sys.settrace(old)
    assert watch.report()["mod.py"]["lines"] == [7]


def test_replaced_at_run_time(watched, tmp_path):
    """Code of the same name, file and line that is not the tree's is reported with its own hash."""

    def call(module):
        forged = TEXT.replace("range(3)", "range(4)")
        exec(compile(forged, str((tmp_path / "mod.py").resolve()), "exec"), module)
        module["outer"](1)

    report = watched([[21, 21]], call)
    assert report["lines"] == [21]
    assert not trusted(report)


def test_replaced_from_elsewhere_is_not_executed(watched):
    report = watched([[21, 21]], lambda m: (m.__setitem__("outer_helper", lambda flag: 0), m["outer"](1)))
    assert report["lines"] == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring needs no early stop")
def test_tracing_stops_once_every_range_was_hit(watched):
    during = []
    watched([[21, 21]], lambda m: (during.append(sys.gettrace()), m["outer"](1), during.append(sys.gettrace())))
    assert during[0] is not None
    assert during[1] is None


@pytest.fixture
def placed(tmp_path):
    """A watch of ``outer_helper``'s body that stops after the test, and the module under it."""
    write_tree(tmp_path, {"mod.py": TEXT})
    watch, names, old = Watch(tmp_path, {"mod.py": [[21, 21]]}), {}, sys.gettrace()
    watch.start()
    exec(compile(TEXT, str((tmp_path / "mod.py").resolve()), "exec"), names)
    yield watch, names["outer"], str((tmp_path / "mod.py").resolve())
    watch.stop()
    sys.settrace(old)


def in_thread(call, then=lambda: None, last=lambda: None):
    """``call`` in a thread that ``threading`` did not start, as the autograd engine's, ``then`` here, ``last`` there.

    Returns the thread's trace function after each of its two calls.
    """
    steps, traces = [threading.Event() for _ in range(3)], []

    def work():
        call()
        traces.append(sys.gettrace())
        steps[0].set()
        steps[1].wait(120)
        last()
        traces.append(sys.gettrace())
        steps[2].set()

    _thread.start_new_thread(work, ())
    assert steps[0].wait(120)
    then()
    steps[1].set()
    assert steps[2].wait(120)
    return traces


def test_a_line_is_told_at_every_place(placed):
    watch, call, name = placed
    watch.at("one")
    call(1)
    call(1)
    watch.at("two")
    watch.at("three")
    call(1)
    assert watch.places == {"one": {name: {21}}, "three": {name: {21}}}
    assert watch.report()["mod.py"]["lines"] == [21]


def test_a_foreign_thread_is_followed_from_its_place(placed):
    watch, call, name = placed
    in_thread(lambda: (watch.at("backward"), call(1)))
    assert watch.places == {"backward": {name: {21}}}


def test_a_foreign_thread_is_let_go_when_the_watch_stops(placed):
    watch, call, _ = placed
    traces = in_thread(lambda: watch.at("backward"), watch.pause, lambda: call(1))
    assert [trace is None for trace in traces] == [sys.version_info >= (3, 12), True]
    assert watch.places == {}


def test_nothing_is_seen_while_paused(placed):
    watch, call, name = placed
    watch.at("one")
    call(0)  # its lines are followed from here on
    with watch.paused():
        watch.at("paused")
        call(1)
    assert watch.places == {"one": {name: {21}}}
    watch.at("two")
    call(1)
    assert set(watch.places) == {"one", "two"}


def test_nothing_is_left_after_the_stop(placed):
    watch, call, _ = placed
    watch.at("one")
    call(1)
    before = watch.places, watch.hits
    watch.stop()
    call(1)
    assert (watch.places, watch.hits) == before
    assert sys.gettrace() is None
    if sys.version_info >= (3, 12):
        assert sys.monitoring.get_tool(4) is None
        sys.monitoring.use_tool_id(4, "test")
        assert sys.monitoring.get_local_events(4, call.__code__) == 0
        assert sys.monitoring.register_callback(4, sys.monitoring.events.LINE, None) is None
        sys.monitoring.free_tool_id(4)
    watch.start()  # for the fixture to stop


def test_hooks_are_undone(tmp_path, monkeypatch):
    class Source:
        def __init__(self, fn):
            self.fn = fn

    class Rewriter:
        def rewrite_ast(self): ...

    modules = {
        "triton.compiler.compiler": {"ASTSource": Source},
        "triton.runtime.interpreter": {"FunctionRewriter": Rewriter},
        "tilelang.language.eager.builder": {"mutate": len},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)

    def hooked():
        return inspect.getsourcelines, Source.__init__, Rewriter.rewrite_ast, sys.modules[name].mutate

    before, watch, old = hooked(), Watch(write_tree(tmp_path, {"mod.py": TEXT}), {"mod.py": [[21, 21]]}), sys.gettrace()
    watch.start()
    watch.hook_triton()
    during = hooked()
    watch.hook_triton()
    assert hooked() == during
    watch.stop()
    sys.settrace(old)
    assert hooked() == before
    assert all(old is not new for old, new in zip(before, during, strict=True))


def test_no_ranges_no_tracing(tmp_path):
    before = sys.gettrace()
    watch = Watch(tmp_path, {})
    hooks = inspect.getsourcelines
    watch.start()
    watch.hook_triton()
    watch.at("nowhere")
    with watch.paused():
        pass
    watch.resume()
    assert (sys.gettrace(), inspect.getsourcelines) == (before, hooks)
    watch.stop()
    assert (watch.report(), watch.places) == ({}, {})


def test_missing_and_foreign_files(tmp_path):
    write_tree(tmp_path, {"kernel.cu": "not python"})
    report = Watch(tmp_path, {"kernel.cu": [[1, 1]], "gone.py": [[1, 1]]}).report()
    assert [entry["lines"] for entry in report.values()] == [[], []]


def test_hash_is_of_meaning_not_of_place(tmp_path):
    here, below = (write_tree(tmp_path / name, {"m.py": text}) for name, text in (("1", TEXT), ("2", "\n\n" + TEXT)))
    assert file_functions(here / "m.py") == file_functions(below / "m.py")
    codes = [compile(f"def f(): return {value}", "x", "exec") for value in (1, 2)]
    assert len({code_sha256(code) for code in codes}) == 2


def test_a_compiled_kernel_reaches_to_its_last_line_under_decorators(tmp_path):
    text = "def jit(function):\n    return function\n\n\n@jit\ndef kernel(x):\n    y = x\n    return y\n"
    path = write_tree(tmp_path, {"kernels.py": text}) / "kernels.py"
    names: dict = {}
    exec(compile(text, str(path), "exec"), names)
    function = names["kernel"]
    compiled = types.SimpleNamespace(fn=function, src=text[text.index("def kernel") :], starting_line_number=5)
    watch = Watch(tmp_path, {"kernels.py": [[8, 8]]})
    watch._triton_function(compiled, set())
    (source,) = watch.report()["kernels.py"]["compiled"]
    assert (source["first"], source["last"]) == (5, 8)
