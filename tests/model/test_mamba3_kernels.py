"""For which shapes kernels are compiled before the first step."""

import pytest

from model.layers.mamba3_kernels import one_shape
from model.settings import Run
from model.sizes import SIZES


def shape(path="auto", row=4096, packs=(5, 16, 17)):
    return one_shape(SIZES["nam56r_quarter"], Run(row=row, paths={"mamba3": path}), 4, set(packs))


@pytest.mark.parametrize("path", ["auto", "tilelang_rows"])
def test_rows_have_one_shape(path):
    assert shape(path) == (4, 4096)


@pytest.mark.parametrize(
    "how", [{"path": "tilelang"}, {"row": None}, {"row": 4097}, {"packs": (5, 16)}],
    ids=["a packed stream", "no rows", "no whole chunks", "pack 17 left out"],
)  # fmt: skip
def test_else_shapes_stay_open(how):
    assert shape(**how) is None
