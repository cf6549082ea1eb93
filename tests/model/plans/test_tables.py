"""The table of a prediction: its parts, what they come from, and that it is no measurement."""

import pytest
from planned import keep, profile

from model.definition.memory import Layout
from model.definition.traffic import GB
from model.families.sizes import SIZES
from model.plans import tables
from model.plans.links import Hosts
from patchlane.base.errors import PatchlaneError

LINKS = {"NCCL reduce-scatter": 0.04, "NCCL all-gather": 0.02}


@pytest.fixture
def run(tmp_path):
    return keep(tmp_path / "a", profiled=profile(links=LINKS))


def rows(run, layout=None, hosts=None, size="nam56r_wide", **options):
    """{what: (predicted, from)} and the title."""
    table = tables.planned([run], SIZES[size], layout or Layout(2, 1, 1, 3), hosts or Hosts(), **options)
    what, values, origins = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(what, zip(values, origins, strict=True), strict=True)), str(table.title)


def test_each_part_and_their_sum(run):
    found, title = rows(run)
    shown = {what: value for what, (value, _) in found.items()}
    assert shown["compute: GEMM"] == "400.0 ms" and shown["optimizer"] == "30.0 ms" and shown["gradients"] == "40.0 ms"
    assert shown["a step"] == "910.0 ms" and shown["tokens/s/GPU"] == "13,503"
    assert shown["of the receipt's layout"] == "100.0%"
    assert {"pipeline bubble", "tokens to and from experts", "rate between hosts, a GPU"}.isdisjoint(shown)
    assert title.startswith("Plan, a prediction and no measurement")
    parts = [float(v.split()[0]) for k, v in shown.items() if v.endswith("ms") and k != "a step"]
    assert sum(parts) == pytest.approx(910.0)


def test_what_is_hidden_is_no_part_of_the_step(run):
    found, _ = rows(run, overlap_grads=True)
    assert found["gradients"][0] == "0.0 ms" and "40.0 ms" in found["gradients"][1]
    assert found["a step"][0] == "870.0 ms" and found["of the receipt's layout"][0] == f"{910 / 870:.1%}"


def test_another_size_is_compared_with_itself_in_the_receipts_layout(run):
    assert rows(run, size="nam56r")[0]["of the receipt's layout"][0] == "100.0%"


def test_rows_of_another_length_are_refused(run):
    assert rows(run, row=4096)[0]["a step"][0] == "910.0 ms"
    with pytest.raises(PatchlaneError) as refused:
        rows(run, row=8192)
    assert refused.value.remedy == tables.NO_SEQUENCE


@pytest.mark.parametrize(("between", "word"), [(50, "nameplate"), (40, "given")])
def test_the_rate_between_hosts_is_never_called_measured(run, between, word):
    found, _ = rows(run, Layout(64, 1, 1, 3), Hosts(8, between * GB))
    value, origin = found["rate between hosts, a GPU"]
    assert value == f"{between} GB/s" and word in origin and "never measured" in origin
    assert found["rate of gradients"][1].endswith("a") and "measured inside a host" in found["rate of gradients"][1]
