"""The newest kept run of a size, asked for in place of a name in code."""

import json

import pytest
from toy import write_tree

from model.families.sizes import SIZES
from model.kinds import catalogue
from model.kinds.run import Run
from model.records import newest
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz


def test_the_newest_kept_run_of_a_size_on_so_many_gpus_is_found(tmp_path):
    kept = tmp_path / "receipts" / "train"
    starts = {"a": ("x", 1, "2026-11-25T1"), "b": ("x", 1, "2026-11-24T2"), "c": ("x", 2, "2026-11-26T3")}
    starts["too short"] = ("x", 1, "2026-11-27T1")
    for name, (size, ranks, started) in starts.items():
        setup = {"size": {"name": size}, "ranks": ranks, "started": started, "paths": {"loss": {"name": name}}}
        files = {
            "run.json": json.dumps(setup),
            "receipt.json": json.dumps(
                {"summary": {"gpu": "H200" if ranks > 1 else None, "steady_steps": 0 if " " in name else 9}}
            ),
        }
        write_tree(kept, {f"{name}/{file}": text for file, text in files.items()})
    for name in ("a", "b"):
        xz.pack(kept / name / "run.json")
    assert [
        newest.newest(*one, kept) for one in (("x", 1, False), ("x", 2, True), ("x", 1, True), ("y", 1, False))
    ] == [
        "1 CPU: receipts/train/a",
        "2 H200: receipts/train/c",
        "",
        "",
    ]
    assert [newest.measured("loss", path, kept) for path in ("b", "d")] == ["b", ""]
    assert newest.measured("other", "b", kept) == ""
    packed = kept / "b" / "run.json.xz"
    for harm in (xz.packed(b"{}"), packed.read_bytes()[:-4]):
        newest._runs.cache_clear()
        packed.write_bytes(harm)
        with pytest.raises(PatchlaneError) as refused:
            newest.newest("x", 1, False, kept)
        assert "b/run.json" in refused.value.what and refused.value.remedy.startswith("git checkout HEAD -- ")


def test_a_kept_run_measured_each_path_that_a_hopper_takes_unasked():
    run = Run(on_cpu=False, bf16=True, hopper=True, row=4096)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("importlib.util.find_spec", lambda name: object())
        patched.setattr("importlib.metadata.version", lambda name: "3.6.0")
        chosen = catalogue.choose(SIZES["nam56r_wide"], run)
    assert [f"{kind}={one.name}" for kind, one in chosen.items() if not newest.measured(kind, one.name)] == []
