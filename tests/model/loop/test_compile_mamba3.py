"""For which shapes kernels are compiled before the first step, and when they need not be."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toy import named

from model.families.sizes import SIZES
from model.kinds.catalogue import PARTS
from model.loop import compile_mamba3, session
from model.loop.compile_mamba3 import KERNELS, Kernels, marker, wanted
from model.patched.overlay import Overlay
from reproducers.upstream.store import Tree

ROWS = Kernels(("fwd", "bwd_fwd", "bwd_bwd"), (4, 4096))


@pytest.mark.parametrize(
    ("path", "packs", "kernels"),
    [
        ("tilelang_rows", {5, 16, 17}, ROWS),
        ("blocks_rows", {5, 16, 17}, Kernels(("fwd",), (4, 4096))),  # its backward pass is no TileLang kernel
        ("tilelang_rows", {5, 16}, Kernels(KERNELS)),  # pack 17 left out
        ("blocks_rows", {5, 16}, Kernels(("fwd",))),
        ("hopper_rows", {5, 16}, Kernels(())),  # nor is its forward pass
        ("tilelang", {5, 16, 17}, Kernels(KERNELS)),  # a packed stream
    ],
)
def test_rows_have_one_shape(path, packs, kernels):
    assert wanted(path, 4, 4096, packs) == kernels


@pytest.mark.parametrize("path", [path.name for path in PARTS["mamba3"].paths])
def test_a_run_has_its_kernels_before_its_first_step(path, monkeypatch):
    """Without pack 17's switch a path of rows runs the kernels for any shape, three times as slow."""
    monkeypatch.setenv(compile_mamba3.SPECIALIZE, "")
    monkeypatch.delenv(compile_mamba3.SPECIALIZE)
    asked = []
    monkeypatch.setattr(compile_mamba3, "compile_once", lambda size, patches, kernels, stack: asked.append(kernels))
    packs = [SimpleNamespace(pack=SimpleNamespace(number=17))]
    session._compile(
        SIZES["nam56r"], path, (4, 4096), "all", SimpleNamespace(packs=packs), SimpleNamespace(local_rank=0)
    )
    upstreams = path in ("blocks_rows", "tilelang_rows", "tilelang")
    assert [kernels.names[0].partition("_")[0] for kernels in asked] == ["fwd"] * upstreams
    assert os.environ.get(compile_mamba3.SPECIALIZE) == ("1" if upstreams and path != "tilelang" else None)


def stack(mamba="m", tilelang="t"):
    def tree(digest):
        return Tree(Path(digest), digest, named(digest))

    return Overlay("cuda", {"mamba-ssm": tree(mamba)}, {}, [tree(tilelang)])


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """What was compiled, on a GPU of capability 9.0 whose TileLang cache is empty."""
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    done = []
    monkeypatch.setattr(
        compile_mamba3, "compile_all", lambda size, patches, kernels, stack: done.append((size.name, kernels))
    )
    return done


def test_the_same_kernels_are_compiled_once(compiled, tmp_path):
    size = SIZES["nam56r_quarter"]
    for _ in range(2):
        compile_mamba3.compile_once(size, "all", ROWS, stack())
    assert compiled == [("nam56r_quarter", ROWS)]
    (tmp_path / "cache").rename(tmp_path / "gone")
    compile_mamba3.compile_once(size, "all", ROWS, stack())
    assert len(compiled) == 2


def test_kernels_that_failed_are_compiled_again(compiled, monkeypatch):
    def fails(*_):
        raise RuntimeError("nvcc")

    monkeypatch.setattr(compile_mamba3, "compile_all", fails)
    with pytest.raises(RuntimeError):
        compile_mamba3.compile_once(SIZES["nam56r_quarter"], "all", ROWS, stack())
    assert not marker(SIZES["nam56r_quarter"], ROWS, stack()).exists()


def test_what_makes_other_kernels(compiled, monkeypatch):
    small, wide = SIZES["nam56r_quarter"], SIZES["nam56r_wide"]
    packed = Kernels(KERNELS)
    found = {
        marker(small, packed, stack()),
        marker(small, ROWS, stack()),
        marker(wide, packed, stack()),
        marker(small, Kernels(("fwd",), (4, 4096)), stack()),
        marker(small, packed, stack(mamba="patched")),
        marker(small, packed, stack(tilelang="newer")),
    }
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    assert len({*found, marker(small, packed, stack())}) == 7
