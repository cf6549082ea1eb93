"""The distance to the limit, from a planted profile.json."""

import json

import pytest
from rich.console import Console

from model.profile.bottlenecks import Cost, PhaseTime, Profile, RankTime
from model.profile.ceilings import NO_GPU, Ceilings, Copy, Product
from model.profile.limits import Limit
from model.reports import limit
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz
from reproducers.record.schema import ROOT

CEILINGS = Ceilings(
    products=[Product(rows=1000, inner=1000, columns=1000, seconds=4e-6)], copied=Copy(size=2**30, seconds=0.0005)
)
GEMM = Limit(name="matrix products", kinds=["GEMM"], seconds=0.5, least=0.4, by="products")
NCCL = Limit(name="NCCL all-gather", kinds=["NCCL all-gather"], seconds=0.125, why="no [links]")
PHASES = [PhaseTime(name="forward", host=0.25, device=0.75), PhaseTime(name="data", host=0.001)]
RANK = RankTime(computing=0.6, communicating=0.1, idle=0.3, phases=PHASES, ceilings=CEILINGS, limits=[GEMM, NCCL])


def planted(folder, ranks):
    kinds = [Cost(name="GEMM", kind="GEMM", seconds=0.5, calls=3, share=0.5)]
    profile = Profile(
        device="NVIDIA H200",
        first_step=7,
        steps=2,
        step_seconds=1.0,
        seconds_before=0.9,
        steps_before=3,
        kinds=kinds,
        top=kinds,
        ranks=ranks,
    )
    (folder / "profile.json").write_text(profile.model_dump_json())
    return folder


def text(folder):
    console = Console(width=160, record=True)
    with console.capture() as shown:
        console.print(*limit.shown(folder))
    return shown.get()


def test_as_data(tmp_path):
    found = limit.data(planted(tmp_path, [RANK, RANK]))["limit"]
    assert (found["device"], found["step_seconds"], len(found["ranks"])) == ("NVIDIA H200", 1.0, 2)
    rank = json.loads(json.dumps(found["ranks"][1]))
    assert rank["flops_per_second"] == pytest.approx(5e14) and rank["bytes_per_second"] == pytest.approx(2**31 / 5e-4)
    assert [(kind["name"], kind["ratio"]) for kind in rank["kinds"]] == [("matrix products", 1.25), (NCCL.name, None)]
    assert (rank["counted"]["seconds"], rank["counted"]["ratio"]) == (0.5, 1.25)
    assert rank["phases"][0] == {"name": "forward", "host": 0.25, "device": 0.75}


def test_as_tables(tmp_path):
    shown = text(planted(tmp_path, [RANK, RANK]))
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if "│" in line]
    assert ["matrix products", "500.00", "400.00", "products", "1.25"] in rows
    assert ["NCCL all-gather", "125.00", "–", "no [links]", "–"] in rows
    assert [row for row in rows if len(row) == 6] == [
        ["0", "500.0", "4.29", "500.0", "400.0", "1.25"],
        ["1", "500.0", "4.29", "500.0", "400.0", "1.25"],
    ]
    assert ["1", "250.0, 750.0", "1.0"] in rows


def test_a_cpu_has_phases_alone(tmp_path):
    folder = planted(tmp_path, [RankTime(phases=PHASES, ceilings=Ceilings(skipped=NO_GPU))])
    assert NO_GPU in text(folder) and "250.0" in text(folder) and "matrix products" not in text(folder)
    assert limit.data(folder)["limit"]["ranks"][0]["counted"] is None


def test_without_a_profile_there_is_nothing(tmp_path):
    assert (limit.shown(tmp_path), limit.data(tmp_path)) == ([], {})


def test_kept_profiles_from_before_are_read():
    kept = [path.parent for path in xz.found(ROOT / "receipts" / "train", "*/profile.json")]
    assert kept
    for folder in kept:
        profile = limit.read(folder)
        assert profile is not None and (limit.data(folder) == {}) == (not any(rank.phases for rank in profile.ranks))
        assert limit.shown(folder)


def test_a_profile_that_is_none_is_said(tmp_path):
    (tmp_path / "profile.json").write_text("{}")
    with pytest.raises(PatchlaneError, match=r"profile\.json"):
        limit.read(tmp_path)
