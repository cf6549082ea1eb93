"""metrics.jsonl: what was written is read back, whatever killed the writer."""

import json
import math
from pathlib import Path

import pytest
from recorded import held_out, step

from model.records import history, metrics
from model.records.metrics import SUPERSEDED, MetricsLog
from model.records.records import Event, from_line, to_line
from patchlane.base.errors import PatchlaneError


def write(run, *records, **how):
    with MetricsLog(run, **how) as log:
        for record in records:
            log.write(record)


def steps(run):
    return [record.step for record in history.read(run)]


@pytest.mark.parametrize(
    "record",
    [
        step(3, mfu=0.25, gpu="NVIDIA H200", mtp_loss=3.5, peak_gib=70.5),
        step(4, loss=math.inf, grad_norm=-math.inf, skipped=True),
        held_out(4, 2.5),
        Event(step=4, name="path", detail={"layer": 1, "name": "triton", "share": 0.5, "seen": True, "why": None}),
    ],
)
def test_a_record_survives_its_line(record):
    line = to_line(record)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert from_line(line) == record


def test_what_is_not_finite_is_still_json():
    line = to_line(step(1, loss=math.nan))
    assert json.loads(line, parse_constant=pytest.fail)["loss"] == "NaN"
    assert math.isnan(from_line(line).loss) and not from_line(line).finite


@pytest.mark.parametrize("bad", [{"skipped": True}, {"loss": math.nan}, {"grad_norm": math.inf}])
def test_finite_says_no(bad):
    assert step(1).finite and not step(1, **bad).finite


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(step(1))
        assert steps(tmp_path) == [1]


def test_a_resumed_run_reads_as_one(tmp_path):
    write(tmp_path, *map(step, range(1, 8)), held_out(5, 3.0), held_out(6, 3.0))
    with MetricsLog(tmp_path, resume_step=5) as log:
        log.event(5, "resumed", checkpoint="step5")
        log.write(step(6, loss=7.0))
    records = history.read(tmp_path)
    assert [r.step for r in history.train(records)] == [1, 2, 3, 4, 5, 6]
    assert history.train(records)[-1].loss == 7.0
    assert [r.step for r in history.valid(records)] == [5]
    assert history.events(records, "resumed")[0].detail == {"checkpoint": "step5"}
    aside = [from_line(line).step for line in (tmp_path / SUPERSEDED).read_bytes().splitlines()]
    assert aside == [6, 7, 6]


def test_starting_afresh_moves_all_aside(tmp_path):
    write(tmp_path, Event(step=0, name="path"), step(1))
    write(tmp_path, step(1, loss=5.0))
    assert [r.loss for r in history.read(tmp_path)] == [5.0]
    assert len((tmp_path / SUPERSEDED).read_bytes().splitlines()) == 2


@pytest.mark.parametrize("at", [history.NAME, SUPERSEDED])
def test_a_kill_before_either_file_loses_and_doubles_nothing(tmp_path, monkeypatch, at):
    write(tmp_path, *map(step, range(1, 5)))
    whole, real = (tmp_path / history.NAME).read_bytes(), metrics._write

    def killed(path, lines):
        if path.name == at:
            raise KeyboardInterrupt
        real(path, lines)

    monkeypatch.setattr(metrics, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        MetricsLog(tmp_path, resume_step=2)
    assert (tmp_path / history.NAME).read_bytes() == whole
    monkeypatch.setattr(metrics, "_write", real)
    write(tmp_path, resume_step=2)
    assert steps(tmp_path) == [1, 2]
    assert len((tmp_path / SUPERSEDED).read_bytes().splitlines()) == 2


@pytest.mark.parametrize("cut", [1, 40, -2])
def test_a_truncated_last_line_is_mended(tmp_path, cut):
    write(tmp_path, step(1))
    last = to_line(step(2))[:cut]
    with (tmp_path / history.NAME).open("ab") as sink:
        sink.write(last)
    assert steps(tmp_path) == [1]  # a reader of a live run does not repair it
    write(tmp_path, step(2), resume_step=1)
    assert steps(tmp_path) == [1, 2]
    assert json.loads((tmp_path / SUPERSEDED).read_text()) == {"kind": "fragment", "text": last.decode()}


def test_a_last_line_that_lacks_only_its_line_feed_is_kept(tmp_path):
    (tmp_path / history.NAME).write_bytes(to_line(step(1)) + to_line(step(2))[:-1])
    write(tmp_path, step(3), resume_step=2)
    assert steps(tmp_path) == [1, 2, 3]
    assert not (tmp_path / SUPERSEDED).exists()


@pytest.mark.parametrize("bad", [b"{}\n", b"\xff\xfe\n", b"\n", to_line(step(1)).replace(b'"train"', b'"tain"')])
def test_a_bad_line_inside_is_refused_and_left_alone(tmp_path, bad):
    path = tmp_path / history.NAME
    path.write_bytes(to_line(step(1)) + bad + to_line(step(2)))
    before = path.read_bytes()
    for reading in (lambda: history.read(tmp_path), lambda: MetricsLog(tmp_path, resume_step=2)):
        with pytest.raises(PatchlaneError, match=r"metrics\.jsonl, line 2\b") as told:
            reading()
        assert "sed -n 2p" in told.value.remedy
    assert path.read_bytes() == before


def test_two_writers_are_one_too_many(tmp_path):
    with MetricsLog(tmp_path), pytest.raises(PatchlaneError, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path)
    MetricsLog(tmp_path).close()


def test_a_full_disk_is_said(tmp_path):
    with MetricsLog(tmp_path) as log:
        log._file.close()
        log._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115  closed with the log
        with pytest.raises(PatchlaneError, match="No space left"):
            log.write(step(1))
    MetricsLog(tmp_path).close()


@pytest.mark.parametrize("content", [None, b"", to_line(step(1))[:10]])
def test_nothing_to_read_is_said(tmp_path, content):
    if content is not None:
        (tmp_path / history.NAME).write_bytes(content)
    with pytest.raises(PatchlaneError) as told:
        history.read(tmp_path)
    assert told.value.remedy


def test_a_step_evaluated_twice_counts_once():
    records = [step(2), step(1), step(2, loss=4.0), held_out(2, 3.0), held_out(2, 2.0)]
    assert [(r.step, r.loss) for r in history.train(records)] == [(1, 10.0), (2, 4.0)]
    assert [r.loss for r in history.valid(records)] == [2.0]


@pytest.mark.parametrize("every", [1, 3])
def test_a_long_run_is_read_in_part_with_its_last_step_and_all_that_are_not_finite(tmp_path, every):
    bad = {7: {"loss": math.inf}, 11: {"skipped": True}}
    write(tmp_path, *(step(n, **bad.get(n, {})) for n in range(1, 18)), held_out(5, 3.0), Event(step=17, name="x"))
    records = history.read(tmp_path, most=-(-17 // every))
    wanted = {n for n in range(1, 18) if n % every == 0} | {7, 11, 17}
    assert [r.step for r in history.train(records)] == sorted(wanted)
    assert history.train(records) == [r for r in history.train(history.read(tmp_path)) if r.step in wanted]
    assert len(history.valid(records)) == len(history.events(records, "x")) == 1


def test_a_picture_of_a_long_run_and_a_resume_parse_few_lines(tmp_path, monkeypatch):
    """Of 3,000 steps; a million of them parsed would take minutes and gigabytes."""
    write(tmp_path, *map(step, range(1, 3001)), Event(step=3, name="rewind", detail={"name": "other"}))
    parsed, real = [], history.from_line
    monkeypatch.setattr(history, "from_line", lambda line: parsed.append(line) or real(line))
    assert len(history.train(history.read(tmp_path, most=10))) <= 11
    MetricsLog(tmp_path, resume_step=2990).close()
    assert [event.step for event in history.named(tmp_path, "rewind")] == [3]
    assert history.named(tmp_path, "other") == [] and history.any_step(tmp_path)
    assert len(parsed) < 20


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_the_end_of_a_file_is_found_whatever_is_read_at_a_time(tmp_path, monkeypatch, block):
    monkeypatch.setattr(metrics, "BLOCK", block)
    for content, rest in ((b"", b""), (b"abc", b"abc"), (b"a\n", b""), (b"a\nbcdefghij", b"bcdefghij")):
        (tmp_path / "f").write_bytes(content)
        assert metrics._rest(tmp_path / "f") == rest
