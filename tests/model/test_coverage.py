"""Coverage on the toy upstream: what executed where, what stops a run, and that nothing of it is left."""

import dataclasses
import inspect
import json
import sys

import pytest
from recorded import step
from toy import FIRST, RECORD, SOURCE, TOTAL, edited
from toy_model import Stage, imported, overlay_of
from typer.testing import CliRunner

from model.coverage import app
from model.patched.proof import table
from model.patched.proof.watching import Coverage, require
from model.records.records import Phases
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.training import coverage as coverage_record

PACK = "pack07"
# three hunks: total, a constant, and first
EDITS = (TOTAL, FIRST, ("def unused", "LIMIT = 3\n\n\ndef unused"))


@pytest.fixture(autouse=True)
def no_trace_of_it():
    """Whatever a test does, the interpreter is as before."""
    before = sys.gettrace(), inspect.getsourcelines
    yield
    assert (sys.gettrace(), inspect.getsourcelines) == before
    if sys.version_info >= (3, 12):
        assert sys.monitoring.get_tool(4) is None


@pytest.fixture
def found(toy):
    """An overlay with the toy's pack."""
    pack = toy.pack(toy.patch(edited(*EDITS)), record=RECORD)
    return overlay_of(toy, pack, SOURCE)


@pytest.fixture
def trained(found, monkeypatch):
    """Train some steps with ``calls(core)`` on the layers; returns the coverage."""

    def run(calls, steps=4, **coverage):
        seen = Coverage(found, wanted={PACK}, **coverage)
        with seen.building():
            core = imported(found, monkeypatch)
        model = Stage(calls(core))
        seen.attach(model)
        for _ in range(steps):
            with seen.step():
                model().backward()
        return seen

    return run


def nothing():
    """A layer's call that reaches no upstream code."""


def hunks(seen):
    return {hunk.state: hunk for hunk in seen.record().packs["pack07"].hunks}


def test_executed_by_layer_and_direction(trained):
    seen = trained(lambda core: [(lambda: core.total([1]), nothing), (nothing, lambda: core.first([]))])
    total, first = (hunk for hunk in seen.record().packs["pack07"].hunks if hunk.state == "ran")
    assert total.places == {"1 dsa": total.lines}
    assert first.places == {"2 moe backward": first.lines}
    assert "values" in (seen._overlay.trees["toyup"].path / total.file).read_text().splitlines()[total.lines[0] - 1]
    assert total.where == f"toyup/core.py:{total.first}-{total.last}"


def test_a_line_is_told_to_every_layer_that_runs_it(trained):
    """Also in the second step only, and also where another layer ran it before."""
    calls = []

    def later(core):
        return lambda: core.total([1]) if len(calls) > 3 else calls.append(0)

    seen = trained(lambda core: [(lambda: core.total([1]), later(core)), (lambda: core.total([1]), later(core))])
    assert set(hunks(seen)["ran"].places) == {"1 dsa", "2 moe"}
    seen = trained(lambda core: [(later(core), lambda: core.total([1])), (later(core), nothing)], steps=3)
    assert set(hunks(seen)["ran"].places) == {"1 dsa", "1 dsa backward", "2 moe"}


def test_importing_proves_nothing(trained):
    seen = trained(lambda core: [(nothing, nothing)] * 2)
    assert {state for state in hunks(seen)} == {"loaded", "never"}
    assert hunks(seen)["loaded"].places == {"build": [hunks(seen)["loaded"].first]}


def test_what_only_runs_while_building(found, monkeypatch):
    seen = Coverage(found)
    with seen.building():
        imported(found, monkeypatch).total([1])
    with pytest.raises(RuntimeError), seen.step():
        raise RuntimeError
    assert list(hunks(seen)["ran"].places) == ["build"]
    require(seen.record(), found, "cpu")


def test_a_wanted_pack_that_never_ran_stops(trained, found):
    record = trained(lambda core: [(nothing, nothing)] * 2).record()
    with pytest.raises(PatchlaneError) as caught:
        require(record, found, "cpu")
    assert "pack07, " in caught.value.what
    assert all(f"{hunk.where} ({hunk.state})" in caught.value.what for hunk in record.packs[PACK].hunks)
    assert "--patches none" in caught.value.remedy
    require(record, found, "cuda")  # another device's runs are others


def test_a_patch_of_an_import_alone_is_done_when_imported(toy, monkeypatch):
    """The same constant proves nothing beside changed functions."""
    found = overlay_of(toy, toy.pack(toy.patch(edited(EDITS[2])), record=RECORD), SOURCE)
    seen = Coverage(found, wanted={PACK})
    with pytest.raises(PatchlaneError, match="pack07"):
        require(seen.record(), found, "cpu")
    with seen.building():
        imported(found, monkeypatch)
    with pytest.raises(RuntimeError), seen.step():
        raise RuntimeError
    (hunk,) = seen.record().packs["pack07"].hunks
    assert (hunk.state, hunk.at_import) == ("loaded", True)
    require(seen.record(), found, "cpu")


def test_a_decorator_is_the_import_s(toy, monkeypatch):
    """A function's code begins with its first decorator, which runs although the function is never called."""
    added = "import functools\n\n\n@functools.lru_cache(\n    maxsize=1,\n)\ndef added():\n    return 1\n\n\ndef unused"
    found = overlay_of(toy, toy.pack(toy.patch(edited(("def unused", added))), record=RECORD), SOURCE)
    seen = Coverage(found)
    with seen.building():
        core = imported(found, monkeypatch)
    assert [hunk.state for hunk in seen.record().packs["pack07"].hunks] == ["loaded"]
    with pytest.raises(RuntimeError), seen.step():
        raise RuntimeError(core.added())
    assert [hunk.state for hunk in seen.record().packs["pack07"].hunks] == ["ran"]


def test_one_hunk_is_enough_and_others_owe_nothing(trained, found):
    require(trained(lambda core: [(nothing, lambda: core.first([])), (nothing, nothing)]).record(), found, "cpu")
    record = trained(lambda core: [(nothing, nothing)] * 2).record()
    kept = record.packs["pack07"].model_copy(update={"consumed_by": ["cuda by default"]})
    record = record.model_copy(update={"packs": {"pack07": kept}})
    require(record, found, "cpu")
    bare = dataclasses.replace(found, applied={})
    require(record, bare, "cuda")  # not applied: nothing is owed
    with pytest.raises(PatchlaneError, match=r"pack07.*coverage\.json"):
        require(record.model_copy(update={"packs": {}}), found, "cpu")


@pytest.mark.parametrize("early", [True, False])
def test_the_first_of_an_occasion_is_watched_beside_the_steps(trained, found, monkeypatch, early):
    """Before, between and after the watched steps; of a second one nothing is seen."""
    core, seen = imported(found, monkeypatch), Coverage(found)

    def occasion(call):
        with seen.once("saving"):
            call()

    if early:
        with seen.building():
            pass
        occasion(lambda: core.total([1]))
    for _ in range(2):
        with seen.step():
            pass
    assert seen.watched and seen.news
    assert not any(hunk.executed for hunk in seen.record().packs[PACK].hunks) or early
    assert not seen.news
    if not early:
        occasion(lambda: core.total([1]))
        assert seen.news
    occasion(lambda: core.first([]))
    places = [hunk.places for hunk in seen.record().packs[PACK].hunks if hunk.executed]
    assert [set(place) for place in places] == [{"saving"}]


def test_off_after_the_watched_steps(trained, found, monkeypatch):
    during = []

    def look():
        during.append(bool(sys.monitoring.get_tool(4)) if sys.version_info >= (3, 12) else sys.gettrace() is not None)

    seen = trained(
        lambda core: [(look, look), (nothing, lambda: core.total([1]) if len(during) > 4 else None)], steps=6
    )
    assert during == [True] * 4 + [False] * 8
    assert "ran" not in hunks(seen)  # total was called, but only after the second step
    assert (len(seen.seconds_watched), seen.watched) == (2, True)


def test_between_steps_nothing_is_watched(found, monkeypatch):
    seen = Coverage(found)
    core = imported(found, monkeypatch)
    with seen.step():
        pass
    core.total([1])
    assert sys.gettrace() is None
    with seen.step():
        pass
    assert "ran" not in hunks(seen)


def test_nothing_to_watch(found, monkeypatch):
    """--patches none: the first steps are timed, and nothing else happens."""
    seen = Coverage(dataclasses.replace(found, applied={}))
    with seen.building():
        imported(found, monkeypatch)
    for _ in range(4):
        with seen.step():
            assert sys.gettrace() is None
    assert (seen.record().packs, len(seen.seconds_watched)) == ({}, 2)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="settrace asks nobody")
def test_a_debugger_is_there_already(found):
    sys.monitoring.use_tool_id(4, "other")
    try:
        with pytest.raises(CannotTestHere), Coverage(found).step():
            pass
    finally:
        sys.monitoring.free_tool_id(4)


def test_a_step_that_raises_ends_it(trained):
    def fail():
        raise RuntimeError("NaN")

    with pytest.raises(RuntimeError, match="NaN"):
        trained(lambda core: [(fail, nothing), (nothing, nothing)])


def test_code_that_is_not_the_files(trained):
    def replaced(core):
        text = inspect.getsource(core.total).replace("0.0", "1.0")
        exec(compile("\n" * (core.total.__code__.co_firstlineno - 1) + text, core.__file__, "exec"), vars(core))
        return [(lambda: core.total([1]), nothing), (nothing, nothing)]

    assert trained(replaced).record().foreign == ["toyup/core.py:total"]
    assert trained(lambda core: [(lambda: core.total([1]), nothing)] * 2).record().foreign == []


def test_ranks_are_joined(trained):
    one = trained(lambda core: [(lambda: core.total([1]), nothing), (nothing, nothing)]).record()
    two = trained(lambda core: [(nothing, nothing), (lambda: core.total([1]), lambda: core.first([]))]).record()
    both = coverage_record.merged([one, two]).packs["pack07"]
    assert [hunk.state for hunk in both.hunks] == ["ran", "loaded", "ran"]
    assert both.hunks[0].places == {"1 dsa": both.hunks[0].lines, "2 moe": both.hunks[0].lines}
    assert coverage_record.merged([one]) == one


def test_the_verb(trained, tmp_path):
    run = tmp_path / "run"
    trained(lambda core: [(lambda: core.total([1]), nothing), (nothing, nothing)]).record().write(run)
    result = CliRunner().invoke(app, [str(run)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "toyup/core.py:" in result.output
    assert "1 dsa: " in result.output
    data = json.loads((run / "coverage.json").read_text())
    for hunk in data["packs"]["pack07"]["hunks"]:
        hunk["state"] = "never"
    (run / "coverage.json").write_text(json.dumps(data))
    result = CliRunner().invoke(app, [str(run)], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "pack07" in result.output.splitlines()[-1]


def test_the_file_has_a_line_a_hunk(trained, tmp_path):
    record = trained(lambda core: [(lambda: core.total([1]), nothing), (nothing, nothing)]).record()
    record.write(tmp_path)
    lines = (tmp_path / "coverage.json").read_text().splitlines()
    hunks = record.packs["pack07"].hunks
    assert [json.loads(line.rstrip(",")) for line in lines if '"file"' in line] == [h.model_dump() for h in hunks]
    assert coverage_record.read(tmp_path) == record


def test_hunks_that_nothing_executed_share_their_files_row(trained):
    seen = trained(lambda core: [(lambda: core.total([1]), nothing), (nothing, nothing)]).record().packs["pack07"]
    ran = next(hunk for hunk in seen.hunks if hunk.executed)
    never = [ran.model_copy(update={"state": "never", "first": n, "last": n + 1}) for n in (70, 80)]
    imported = ran.model_copy(update={"state": "loaded", "first": 90, "last": 90})
    rows = table.rows(seen.model_copy(update={"hunks": [never[0], ran, imported, never[1]]}))
    assert [where for where, _ in rows] == [ran.where, f"{ran.file}:70-71,80-81", f"{ran.file}:90-90"]
    assert [state for _, state in rows[1:]] == ["never", "imported only"]


def test_what_watching_cost_is_told_beside_steps_without_it(trained):
    record = trained(lambda core: [(lambda: core.total([1]), nothing)] * 2).record()
    slow = {"seconds": Phases(data=0, forward_backward=9.0, optimizer=0)}
    steps = [step(1, **slow), step(2, **slow), *(step(n) for n in range(3, 6))]
    assert table.cost(record, steps).endswith(": 0.50 s a step (median of 3)")
    assert table.cost(record, steps[:2]).endswith("not measured")


def test_bad_records(tmp_path):
    with pytest.raises(PatchlaneError, match=r"coverage\.json: "):
        coverage_record.read(tmp_path)
    (tmp_path / "coverage.json").write_text('{"schema_version": 2}')
    with pytest.raises(PatchlaneError, match="schema_version"):
        coverage_record.read(tmp_path)
