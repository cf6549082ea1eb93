"""A run among runs of other seeds: what counts, what is refused, the command and its picture."""

import json
import math

import pytest
from recorded import held_out, step
from typer.testing import CliRunner

from model.records.metrics import MetricsLog
from model.reports.compare import spread
from model.spread import app
from patchlane.base.errors import PatchlaneError


def run(folder, loss, held=(), steps=20, digest="a", tokens=1000):
    """Every step's loss is ``loss``, and held-out losses are ``held``, {step: loss}."""
    with MetricsLog(folder) as log:
        log.event(0, "dataset", digest=digest)
        for n in range(1, steps + 1):
            log.write(step(n, loss=loss, tokens=tokens * n))
            if n in dict(held):
                log.write(held_out(n, dict(held)[n]))
    return folder


@pytest.fixture
def seeds(tmp_path):
    held = ({10: 1.1, 20: 0.9}, {10: 1.3, 20: 0.8}, {10: 1.2})
    return [run(tmp_path / f"seed{n}", 1 + n / 10, held[n], 20 - 5 * (n == 2)) for n in range(3)]


def test_held_out_where_all_were_and_the_last_steps_of_all(seeds, tmp_path):
    held, training = spread(run(tmp_path / "run", 1.15, {10: 1.25, 20: 9.0}), seeds, last=5)
    assert (held.what, held.value, held.least, held.greatest, held.within) == (
        "held out, step 10",
        1.25,
        1.1,
        1.3,
        True,
    )
    assert training.what.endswith("steps 11 to 15")  # the third seed ends there
    assert (training.value, training.least, training.greatest) == pytest.approx((1.15, 1.0, 1.2))
    assert training.within


@pytest.mark.parametrize(
    ("loss", "held", "within"),
    [(1.21, 1.2, [True, False]), (1.2, 1.31, [False, True]), (0.5, 0.5, [True, True]), (math.nan, 1.2, [True, False])],
)
def test_above_every_seed_is_outside_and_below_is_not(seeds, tmp_path, loss, held, within):
    assert [among.within for among in spread(run(tmp_path / "run", loss, {10: held}), seeds, 15)] == within


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (lambda folder, seeds: seeds[:1], "name two runs"),
        (lambda folder, seeds: [*seeds, run(folder / "b", 1, digest="b")], "--data"),
        (lambda folder, seeds: [*seeds, run(folder / "none", 1, steps=0)], "longer runs"),
        (lambda folder, seeds: [*seeds, folder / "run"], "each once"),
        (lambda folder, seeds: [*seeds, seeds[0]], "each once"),
        (lambda folder, seeds: [*seeds, run(folder / "more", 1, tokens=2000)], "micro_batch"),
        (lambda folder, seeds: [*seeds, run(folder / "nan", math.nan)], "seeds that trained"),
    ],
)
def test_what_has_no_spread_is_refused(seeds, tmp_path, wrong, remedy):
    with pytest.raises(PatchlaneError) as refused:
        spread(run(tmp_path / "run", 1.0), wrong(tmp_path, seeds), 5)
    assert remedy in refused.value.remedy


def test_the_command_draws_and_fails_outside(seeds, tmp_path):
    good, bad = run(tmp_path / "[run]", 1.1, {10: 1.2}), run(tmp_path / "bad", 2.0)
    drawn = CliRunner().invoke(app, [*map(str, [good, *seeds]), "--picture", str(tmp_path / "band.png")])
    assert drawn.exit_code == 0 and "[run]" in drawn.output and (tmp_path / "band.png").stat().st_size > 10_000
    refused = CliRunner().invoke(app, [*map(str, [good, *seeds]), "--picture", str(tmp_path)])
    assert refused.exception.remedy == f"--picture {tmp_path}.png"
    told = CliRunner().invoke(app, [*map(str, [bad, *seeds]), "--json"])
    assert told.exit_code == 1 and [json.loads(line)["value"] for line in told.output.splitlines()] == [2.0]
