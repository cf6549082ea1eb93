"""The verb: runs that ended otherwise, hunks that none executed, losses apart."""

import pytest
from recorded import step
from typer.testing import CliRunner

from model import patched_paths
from model.patched import runs
from model.patched.proof.accounted import Account
from model.patched.taking import Ended
from model.records.metrics import MetricsLog

RUN = {"about": "a", "recipe": "cpu_tiny", "gpus": 0}
PLAN = {name: RUN for name in ("one", "two")} | {"judged": RUN | {"alike": ["one", "two"]}}


def record(folder, factor):
    with MetricsLog(folder) as log:
        log.event(0, "dataset", digest="a")
        for number in range(1, 4):
            log.write(step(number, loss=10 / number * (1 if number < 3 else factor)))


@pytest.fixture
def verb(tmp_path, monkeypatch):
    """Call it on runs that ended with these codes and whose last losses are off by these factors."""

    def called(*words, codes=None, rest=(), judged=1.0):
        for name, factor in {"one": 1.0, "two": 1.001, "judged": judged}.items():
            record(tmp_path / name, factor)
        ended = {name: Ended((codes or {}).get(name, 0)) for name in PLAN}
        plan = runs.Plan.model_validate({"schema_version": 1, "runs": PLAN})
        monkeypatch.setattr(patched_paths.runs, "read", lambda: plan)
        monkeypatch.setattr(patched_paths.Taking, "all", lambda self: {name: ended[name] for name in self.plan.runs})
        monkeypatch.setattr(patched_paths.accounted, "of", lambda packs, folder: Account(7, 2, list(rest)))
        kept = []
        monkeypatch.setattr(patched_paths, "keep", lambda run, name: kept.append((run.name, name)) or name)
        done = CliRunner().invoke(patched_paths.app, [*words, "--out", str(tmp_path)])
        return done.exit_code, done.stdout, kept

    return called


def test_all_is_well(verb):
    code, said, kept = verb("--keep", "x", judged=1.0005)
    assert (code, kept) == (0, [(name, f"x_{name}") for name in PLAN])
    assert "7 hunks ran" in said and "judged" in said


def test_losses_that_are_further_off_than_their_like_are_refused(verb):
    assert verb(judged=1.002)[0] == verb(judged=0.99)[0] == 1
    assert verb(judged=1.002, codes={"two": 1})[1].count("further off") == 0, "without the measure none is judged"


def test_a_hunk_that_none_executed_counts_where_all_runs_were_asked_for(verb):
    code, said, _ = verb(rest=["pack07 fix.patch: core.py hunk 2 ran nowhere"])
    assert code == 1 and "core.py hunk 2" in said
    assert verb("one", rest=["pack07 fix.patch: core.py hunk 2 ran nowhere"])[0] == 0


def test_a_run_that_failed_is_named_with_its_log_and_not_kept(verb, tmp_path):
    code, said, kept = verb("--keep", "x", codes={"one": 3})
    assert code == 1 and f"{tmp_path}/one.log" in said.replace("\n", "")
    assert [name for name, _ in kept] == ["two", "judged"]
