"""For which shapes kernels are compiled before the first step, and when they need not be."""

import ast
import functools
import os
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toy import named

from model.families.sizes import SIZES
from model.kinds.catalogue import PARTS
from model.kinds.recurrent.mamba3 import Dims
from model.loop import compile_mamba3, session
from model.loop.compile_mamba3 import KERNELS, Kernels, heads_at_once, marker, side_by_side, wanted
from model.patched.overlay import Overlay
from reproducers.record.schema import ROOT
from reproducers.upstream.store import Tree

SIZE = SIZES["nam56r"]
ROWS, FORWARD = Kernels(("fwd", "bwd_fwd", "bwd_bwd"), (4, 4096)), Kernels(("fwd",), (4, 4096))


@pytest.mark.parametrize(
    ("path", "packs", "kernels"),
    [
        ("tilelang_rows", {5, 16, 17}, ROWS),
        ("tilelang_rows", {5, 16, 17, 53}, FORWARD),
        ("tilelang_rows", {5, 16}, Kernels(KERNELS)),  # pack 17 left out
        ("tilelang_rows", {5, 16, 53}, Kernels(("fwd",))),
        ("hopper_rows", {5, 16, 17}, Kernels((), (4, 4096))),  # Gluon's alone
        ("tilelang", {5, 16, 17, 53}, Kernels(KERNELS)),  # a packed stream
    ],
)
def test_rows_have_one_shape(path, packs, kernels):
    assert wanted(path, SIZE, 4, 4096, packs) == kernels


@pytest.mark.parametrize(
    ("changed", "rows", "row"),
    [({}, 4, 4096 + 16), ({"state": 256}, 4, 4096), ({"chunk": 32}, 4, 4096), ({}, 256, 4096)],
)
def test_what_pack_53_leaves_to_tilelang_has_its_kernels(changed, rows, row):
    size = SIZE.model_copy(update={"mamba": SIZE.mamba.model_copy(update=changed)})
    assert wanted("tilelang_rows", size, rows, row, {17, 53}) == Kernels(ROWS.names, (rows, row))
    assert wanted("tilelang_rows", SIZE, 4, 4096, {17, 53}) == FORWARD


def sizes(draw):
    """(rows, tokens of a row, heads, groups, rank, state, channels of a head, chunk), many near a limit."""
    groups = draw.choice([1, 1, 2, 3, 8])
    heads = groups * draw.choice([1, 2, 5, 7, 14, 16, 17, 20, 34])
    chunk = draw.choice([4, 8, 16, 32])
    return (
        draw.choice([1, 3, 64]),
        chunk * draw.choice([0, 2, 3, 8, 1022, 1024, 2048]),
        heads,
        groups,
        draw.choice([1, 2, 3, 4, 8]),
        draw.choice([16, 32, 96, 128, 256]),
        draw.choice([8, 16, 48, 64, 128]),
        chunk,
    )


def test_what_pack_53_takes_is_what_its_code_takes():
    takes, at_once = of_pack_53("can_run_parallel", "_heads_at_once")
    draw, found = random.Random(0), Counter()
    for _ in range(4000):
        rows, row, heads, groups, rank, state, channels, chunk = sizes(draw)
        dims = Dims(rank=rank, state=state, head_dim=channels, groups=groups, chunk=chunk)
        size = SimpleNamespace(mamba=dims, mamba_heads=heads)
        low = [(rows, row, heads, channels), (rows, row, rank, groups, state), (rows, heads, row)]
        full = [
            (rows, heads, row),
            (heads, rank, state),
            (heads, rank, channels),
            (rows, row, heads, state // 4),
            (heads,),
        ]
        above, wide, trap = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in low)
        scalar, bias, table, angles, skip = (torch.empty(shape, device="meta") for shape in full)
        given = (above, wide, wide, above, scalar, scalar, trap, bias, bias, table, table, table, angles, skip, above)
        expected = takes(*given, chunk)
        assert side_by_side(size, rows, row) == expected, (rows, row, heads, dims)
        shape = (heads, groups, rank, state, channels, chunk)
        assert heads_at_once(*shape) == at_once(*shape)
        found[expected] += 1
    assert min(found.values()) > 100


def of_pack_53(*names):
    """Functions and constants of the file that pack 53's patch adds, without what imports mamba-ssm."""
    text = next((ROOT / "packs").glob("53_*/fix.patch")).read_text()
    added = text[text.index("+++ b/mamba_ssm/ops/triton/mamba3/mamba3_mimo_bwd_parallel.py") :].splitlines()[2:]
    tree = ast.parse("\n".join(line[1:] for line in added))
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) or (isinstance(node, ast.FunctionDef) and node.name in names)
    ]
    scope = {"torch": torch, "lru_cache": functools.lru_cache}
    exec(compile(tree, "pack 53", "exec"), scope)
    return [scope[name] for name in names]


def test_the_command_compiles_what_a_run_wants(monkeypatch):
    asked = []
    monkeypatch.setattr(compile_mamba3, "compile_once", lambda size, patches, kernels, stack: asked.append(kernels))
    for packs in ({17}, {17, 53}, {5}):
        built = SimpleNamespace(packs=[SimpleNamespace(pack=SimpleNamespace(number=number)) for number in packs])
        monkeypatch.setattr(compile_mamba3.overlay, "chosen", lambda patches, stack: [])
        monkeypatch.setattr(compile_mamba3.overlay, "build", lambda *_, built=built: built)
        compile_mamba3.main("nam56r", rows=4, length=4096)
        compile_mamba3.main("nam56r")
        assert asked == [wanted("tilelang_rows", SIZE, 4, 4096, packs), Kernels(KERNELS)]
        asked.clear()


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
    upstreams = path in ("tilelang_rows", "tilelang")
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
        marker(small, FORWARD, stack()),
        marker(small, packed, stack(mamba="patched")),
        marker(small, packed, stack(tilelang="newer")),
    }
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    assert len({*found, marker(small, packed, stack())}) == 7
