"""The page: predictions beside measurements of planted runs, and a plan that says that nobody ran it."""

import pytest
from planned import keep, profile

from model.plans import measured, page
from model.records.records import Event, to_line
from model.reports import benchmarks
from reproducers.base.errors import PatchlaneError

LINKS = {"NCCL reduce-scatter": 0.04, "NCCL all-gather": 0.02}
TOKENS = {"NCCL all-to-all, send and receive": 0.1}
OWN_SPEED = 3 * 4096 / 0.91


@pytest.fixture
def kept(tmp_path):
    """The four runs that the page rests on; the first is predicted at 910 ms."""
    keep(tmp_path / page.SOURCE, profiled=profile(links=LINKS), speed=OWN_SPEED)
    keep(tmp_path / page.NEWEST, accumulate=4, profiled=profile(links=LINKS), chosen={"moe": "grouped_mm"}, steps=16)
    keep(tmp_path / page.TOKENS_OF_TWO, expert_parallel=2, profiled=profile(links=TOKENS), paths={"moe": "grouped_mm"})
    keep(
        tmp_path / page.TOKENS_OF_FOUR,
        ranks=4,
        expert_parallel=4,
        profiled=profile(links=TOKENS),
        paths={"moe": "grouped_mm"},
    )
    return tmp_path


def pairs(kept):
    source, two = (measured.read(kept / name) for name in (page.SOURCE, page.TOKENS_OF_TWO))
    found, others = page.pairs(kept, source, two)
    return {pair.run.name: pair for pair in found}, others


def test_the_error_is_predicted_over_measured(kept):
    keep(kept / "slower", speed=OWN_SPEED / 2)
    keep(kept / "faster", speed=OWN_SPEED * 2, peak=50.0)
    found, others = pairs(kept)
    assert found["slower"].error == pytest.approx(-0.5) and found["faster"].error == pytest.approx(1.0)
    assert others == [page.NEWEST] and page.SOURCE not in found  # six timed steps
    gib = found["faster"].predicted.gib
    assert found["faster"].memory == pytest.approx(gib / 51 - 1)  # the fullest rank has 51


def test_communication_is_set_beside_the_profiles(kept):
    pair = pairs(kept)[0][page.TOKENS_OF_TWO]
    assert pair.communication == pytest.approx(pair.predicted.communication / 0.1)
    assert pair.predicted.communication > 0.1  # its own all-to-all, and gradients that it has no kernels of


@pytest.mark.parametrize(
    "unlike", [{"steps": 19}, {"row": 8192}, {"accumulate": 0}], ids=["few timed steps", "other rows", "no run.json"]
)
def test_runs_that_cannot_be_compared_are_named(kept, unlike):
    folder = keep(kept / "unlike", **unlike)
    if "accumulate" in unlike:
        (folder / "run.json").unlink()
    found, others = pairs(kept)
    assert sorted(others) == sorted([page.NEWEST, "unlike"]) and "unlike" not in found
    assert "`unlike`" in page.page(kept)


def test_runs_of_another_optimizer_are_not_compared(kept):
    records = keep(kept / "muon") / "metrics.jsonl"
    records.write_bytes(to_line(Event(step=0, name="optimizer", detail={"matrices": "muon"})) + records.read_bytes())
    found, others = pairs(kept)
    assert sorted(others) == sorted([page.NEWEST, "muon"]) and "muon" not in found
    assert "`optimizer=muon`" in benchmarks.layout_and_paths(benchmarks.read(kept / "muon"))


def test_runs_of_other_paths_stand_apart(kept):
    keep(kept / "same", speed=OWN_SPEED)
    own, _, rest = page.page(kept).partition("### Other paths")
    assert "| `same` |" in own and "| `same` |" not in rest and f"| `{page.TOKENS_OF_TWO}` ‡ |" in rest


def test_runs_by_the_plans_paths_are_predicted_from_its_run(kept):
    """What a run took unasked tells them, which the options of an older one do not."""
    keep(kept / "alike", speed=OWN_SPEED, chosen={"moe": "grouped_mm"})
    keep(kept / "older", speed=OWN_SPEED, chosen={"moe": "grouped"})
    made = page.page(kept)
    fresh, _, rest = made.partition("### The plan's paths")[2].partition("### Other paths")
    assert "| `alike` |" in fresh and "| `alike` |" not in rest and "| `older` |" not in fresh


@pytest.mark.parametrize("gone", ["SOURCE", "NEWEST"])
def test_a_page_without_a_run_it_rests_on_is_refused(kept, gone):
    (kept / getattr(page, gone) / "profile.json").unlink()
    with pytest.raises(PatchlaneError) as refused:
        page.page(kept)
    assert refused.value.remedy == measured.REMEDY


def test_the_plan_has_every_layout_for_both_sizes_and_both_numbers(kept):
    _, _, plan = page.page(kept).partition("## Plan for 8, 64 and 512 GPUs: nobody has run this")
    rows = [line.split("|")[1:3] for line in plan.splitlines() if line.startswith(("| 8 ", "| 64 ", "| 512 "))]
    assert [(n.strip(), layout.strip()) for n, layout in rows] == 2 * [
        (n, layout) for n in ("8", "64", "512") for layout in page.PLANNED
    ]
    assert "nameplate" in plan and plan.count("planned, not run") == 2


def test_the_plan_scales_the_newest_run_of_its_size_that_asked_for_no_path():
    source = measured.read(measured.FOLDER / page.SOURCE)
    like = [
        one.run
        for one in page._every(measured.FOLDER)
        if (one.run.size, one.run.report.gpu) == (source.run.size, source.run.report.gpu)
        and not one.run.setup["run"]["paths"]
    ]
    assert max(like, key=lambda run: run.last.time).name == page.NEWEST
