"""The report of a run, and its command."""

import json
import math
import subprocess
import sys

import pytest
from recorded import held_out, step

from model.profile.bottlenecks import markdown
from model.records.metrics import MetricsLog
from model.reports import limit
from model.reports.report import rows, summarise
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz
from reproducers.record.schema import ROOT

KEPT = ROOT / "receipts" / "train" / "1xh200_quarter_20261121"


@pytest.fixture
def run(tmp_path):
    """Ten steps: two slow ones, then 2,000 … 2,006 tokens/s, one of them skipped."""
    with MetricsLog(tmp_path / "[run]") as log:
        for n in range(1, 11):
            speed = 10.0 if n <= 2 else 1997.0 + n
            bad = {"loss": math.nan, "grad_norm": math.inf, "skipped": True} if n == 7 else {}
            log.write(step(n, tokens_per_s_per_gpu=speed, gpu="NVIDIA H200", mfu=0.2, peak_gib=60.0 + n, **bad))
        log.write(held_out(5, 2.5))
        log.write(held_out(10, 1.25))
        log.event(6, "resumed")
        log.event(7, "skip", kind="loss not finite")
        for entropy in (3.25, 3.5, None):  # a resumed run may have another text
            log.event(6, "dataset", unigram_entropy=entropy)
    return tmp_path / "[run]"


def test_a_run_by_another_optimizer_says_so(run):
    assert "optimizer" not in dict(rows(summarise(run)))
    with MetricsLog(run, 10) as log:
        log.event(10, "optimizer", matrices="muon")
    assert dict(rows(summarise(run)))["optimizer"] == "muon and AdamW"


def test_what_it_sums_up(run):
    report = summarise(run, warmup=2)
    assert (report.steps, report.tokens, report.steady_steps) == (10, 10_000, 7)
    assert report.tokens_per_s_per_gpu == 2003.0  # of 2000…2003, 2005…2007
    assert (report.first_loss, report.last_loss, report.min_loss) == (10.0, 1.0, 1.0)
    assert (report.valid_loss, report.valid_step) == (1.25, 10)
    assert report.not_finite_steps == [7] and report.worst_grad_norm == math.inf
    assert report.peak_gib == 70.0 and report.mfu == 0.2 and report.resumed_at == [6]
    assert (report.skipped_at, report.went_back_to) == ([7], None)
    assert dict(rows(report))["spikes, skipped at step"] == "7"
    assert report.unigram_entropy == 3.5 and ("unigram entropy of the text", "3.5000") in rows(report)
    assert report.step_seconds.total == pytest.approx(0.5)
    assert dict(rows(report))["all steps finite"] == "NO: 1 not (7)"


def test_held_out_sets_have_rows_of_their_own(run):
    with MetricsLog(run, 10) as log:
        for name, loss in (("code", 2.0), (None, 1.5), ("prose", 3.0), ("code", 1.75)):
            log.write(held_out(10, loss, name))
    report = summarise(run)
    assert (report.valid_loss, report.valid_losses) == (1.5, {"code": 1.75, "prose": 3.0})
    named = [row for row in rows(report) if row[0].startswith("held-out")]
    assert named[1:] == [("held-out loss of code", "1.7500"), ("held-out loss of prose", "3.0000")]


def test_memory_and_load_of_each_rank(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(step(1, peak_gib=9.0, peaks_gib=[9.0]))  # as one rank, before it went on on two
        for n, peaks in enumerate(([3.0, 5.0], [4.0, 2.0]), 2):
            log.write(step(n, peak_gib=max(peaks), peaks_gib=peaks, expert_load=2.0, rank_load=1.0 + n / 4))
    report = summarise(tmp_path, warmup=0)
    assert (report.peak_gib, report.peaks_gib) == (9.0, [4.0, 5.0])
    assert (report.expert_load, report.rank_load) == (2.0, 1.625)
    assert ("peak memory", "9.0 GiB (by rank 4.0, 5.0)") in rows(report)
    assert ("fullest expert, fullest rank", "2.00, 1.62 of the mean") in rows(report)


def test_a_nan_gradient_norm_is_the_worst(tmp_path):
    with MetricsLog(tmp_path) as log:
        for n, norm in enumerate((1.0, math.nan, math.inf), 1):
            log.write(step(n, grad_norm=norm))
    assert math.isnan(summarise(tmp_path).worst_grad_norm)


def test_a_run_shorter_than_its_warm_up_has_no_medians(run):
    report = summarise(run, warmup=10)
    assert report.steady_steps == 0 and report.tokens_per_s_per_gpu is None and report.step_seconds is None
    assert ("tokens/s/GPU", "–") in rows(report)


def test_no_steps_is_said(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.event(0, "dataset", unigram_entropy=5.0)
    with pytest.raises(PatchlaneError, match=r"metrics\.jsonl"):
        summarise(tmp_path)


def test_the_command(run, tmp_path):
    def call(*args):
        return subprocess.run(
            [sys.executable, "-m", "model.report", *map(str, args)], cwd=ROOT, capture_output=True, text=True
        )

    table = call(run, "--warmup", 2)
    assert table.returncode == 0 and "2,003" in table.stdout and "[run]" in table.stdout
    report = json.loads(call(run, "--warmup", 2, "--json").stdout, parse_constant=pytest.fail)
    assert report["tokens_per_s_per_gpu"] == 2003.0 and report["worst_grad_norm"] == "Infinity"
    assert "limit" not in report
    (run / "profile.json").write_bytes(xz.data(KEPT / "profile.json"))
    assert "ceilings" in call(run).stdout and "limit" not in json.loads(call(run, "--json").stdout)
    assert call(run, "--profile").stdout == markdown(limit.read(KEPT)) and call(tmp_path, "--profile").returncode == 2
    lost = call(tmp_path / "nowhere")
    assert lost.returncode == 2 and "metrics.jsonl" in lost.stderr and "Traceback" not in lost.stderr
