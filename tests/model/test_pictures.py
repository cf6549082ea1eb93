"""The pictures: drawn from the records alone, with what they should show in them."""

import errno
import math
import os
import struct
import subprocess
import sys
import tempfile

import pytest
from recorded import held_out, step

from model.records.metrics import MetricsLog
from model.records.records import Diagnosis
from model.reports import pictures, plotting
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.record.schema import ROOT

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[train]")


@pytest.fixture
def run(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.event(0, "dataset", unigram_entropy=5.125)
        for n in range(1, 41):
            log.write(step(n, mtp_loss=12 / n, gpu="NVIDIA H200", **({"loss": math.nan} if n == 9 else {})))
        log.write(held_out(20, 0.75))
        log.event(30, "resumed")
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they were when saved, by file name."""
    kept, save = {}, plotting.save
    monkeypatch.setattr(
        plotting, "save", lambda figure, path: kept.setdefault(path.name, figure) and save(figure, path)
    )
    return kept


def legend(panel):
    return [text.get_text() for text in panel.get_legend().get_texts()]


def curve(panel, label):
    return next(c for c in panel.get_lines() if c.get_label().startswith(label))


def test_both_are_pictures(run):
    for path, height in zip(pictures.draw(run), (660, 900), strict=True):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (1200, height)


def test_the_loss_has_all_its_lines(run, drawn):
    pictures.draw(run)
    (panel,) = drawn["loss.png"].axes
    assert [t.split(",")[0].split(" (")[0] for t in legend(panel)] == [
        "training",
        "multi-token prediction",
        "held out",
        "unigram entropy 5.12",
        "resumed",
        "not finite",
    ]
    steps = list(curve(panel, "training").get_xdata())
    assert steps == [n for n in range(1, 41) if n != 9]
    assert curve(panel, "training").get_ydata()[0] == 10.0
    assert list(curve(panel, "held out").get_ydata()) == [0.75]
    assert list(curve(panel, "unigram").get_ydata()) == [5.125, 5.125]
    assert list(curve(panel, "resumed").get_xdata()) == [30, 30] and list(curve(panel, "not f").get_xdata()) == [9, 9]
    assert "nats" in panel.get_ylabel() and panel.get_xlabel() == "optimizer step"
    (above,) = panel.child_axes
    assert above.get_xlabel() == "tokens seen (million)"
    assert above.get_xlim()[1] == pytest.approx(panel.get_xlim()[1] / 1000)


def test_each_held_out_set_is_a_curve_of_its_own(run, drawn):
    with MetricsLog(run, 40) as log:
        for at, name in enumerate(("code", "prose", "maths")):
            log.write(held_out(20, 2.0 + at, name))
            log.write(held_out(40, 1.0 + at, name))
    pictures.draw(run)
    (panel,) = drawn["loss.png"].axes
    curves = [curve(panel, f"held out{name}") for name in (", last", ", code", ", prose", ", maths")]
    assert [list(c.get_ydata()) for c in curves] == [[0.75], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0]]
    assert len({c.get_color() for c in curves}) == len({c.get_marker() for c in curves}) == 4


@pytest.mark.parametrize(("log", "scale"), [(False, "linear"), (True, "log")])
def test_the_loss_axis_is_as_asked_for(run, drawn, log, scale):
    pictures.draw(run, log)
    assert drawn["loss.png"].axes[0].get_yscale() == scale


def test_the_throughput_and_its_phases(run, drawn):
    pictures.draw(run)
    speed, phases = drawn["throughput.png"].axes
    assert speed.get_ylabel() == "tokens / s / GPU" and phases.get_ylabel() == "seconds a step"
    assert list(curve(speed, "median 2,000").get_ydata()) == [2000.0, 2000.0]
    assert legend(phases) == [
        "forward + backward, median 0.3 s",
        "optimizer, median 0.06 s",
        "data, median 0.1 s",
        "other, median 0.04 s",
    ]
    top = max(collection.get_datalim(phases.transData).y1 for collection in phases.collections)
    assert top == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [{}, {"loss": math.nan}])
def test_one_step_is_enough(tmp_path, bad):
    with MetricsLog(tmp_path) as log:
        log.write(step(1, **bad))
    assert all(path.stat().st_size > 10_000 for path in pictures.draw(tmp_path))


def test_smoothing_drops_outliers_and_keeps_the_ends():
    assert plotting.smoothed([9.0, 1.0, 1.0, 50.0, 1.0, 1.0, 0.0], 5) == [9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_no_steps_and_no_matplotlib_are_said(tmp_path, run, monkeypatch):
    with MetricsLog(tmp_path / "empty") as log:
        log.event(0, "dataset")
    with pytest.raises(PatchlaneError, match=r"metrics\.jsonl"):
        pictures.draw(tmp_path / "empty")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CannotTestHere, match="pip install matplotlib"):
        pictures.draw(run)


def test_a_read_only_folder_gets_no_picture(run, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(run / ".tmp-x.png"))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(PatchlaneError) as refused:
        pictures.draw(run)
    assert refused.value.what.startswith(f"{run}: ") and f"cp -r {run} " in refused.value.remedy


def test_the_command(run):
    done = subprocess.run([sys.executable, "-m", "model.pictures", run], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == [str(run / "loss.png"), str(run / "throughput.png")], done.stderr


def test_those_of_a_kept_run_are_drawn_elsewhere(run, tmp_path, monkeypatch):
    from model import pictures as verb

    (run / "receipt.json").write_text("{}")
    before = {*run.iterdir()}
    monkeypatch.setattr(verb, "ROOT", tmp_path.with_name("here"))
    verb.main(run)
    assert {*run.iterdir()} == before
    drawn = tmp_path.with_name("here") / "build" / "pictures" / run.name
    assert {path.name for path in drawn.iterdir()} == {"loss.png", "throughput.png"}


def test_diagnosed_steps_have_a_picture_of_their_own(run, drawn):
    with MetricsLog(run, resume_step=40) as log:
        for at in (10, 20):
            log.write(
                Diagnosis(
                    step=at,
                    router_load={"2": 1.5, "4": 2.0},
                    attention_logits={"1": 3.0},
                    rank_seconds=[1.0, 1.5],
                    gradient_norms={"mla": 0.1 * at, "router": math.nan},
                )
            )
    assert [path.name for path in pictures.draw(run)] == ["loss.png", "throughput.png", "diagnosis.png"]
    panels = drawn["diagnosis.png"].axes
    assert [legend(panel) for panel in panels] == [["2", "4"], ["1"], ["mla", "router"], ["0", "1"]]
    assert list(curve(panels[2], "mla").get_ydata()) == [1.0, 2.0]
