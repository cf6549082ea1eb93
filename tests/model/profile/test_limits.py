"""The table of limits, of planted times, work and ceilings."""

import pytest

from model.profile import limits
from model.profile.ceilings import Ceilings, Copy, Product
from model.profile.work import LINKS, NO_SIZES, Work

CEILINGS = Ceilings(  # 100 FLOP/s, 10 bytes/s
    products=[Product(rows=5, inner=5, columns=2, seconds=2.0), Product(rows=5, inner=5, columns=2, seconds=1.0)],
    copied=Copy(size=5, seconds=1.0),
)
WORKS = [
    Work("products", ("GEMM", "grouped GEMM"), flops=200.0),
    Work("updates", ("optimizer",), moved=5.0),
    Work("elsewhere", ("attention",), flops=0.0),
    Work("never ran", ("norm",), moved=1.0),
]
SECONDS = {"optimizer": 2.0, "GEMM": 3.0, "grouped GEMM": 1.0, "attention": 0.25, "NCCL all-gather": 0.5, "other": 0.1}


def found():
    return {limit.name: limit for limit in limits.limits(SECONDS, WORKS, CEILINGS)}


def test_least_times_and_ratios():
    table = found()
    assert [*table] == ["products", "updates", "NCCL all-gather", "elsewhere", "other"]
    products, updates = table["products"], table["updates"]
    assert (products.seconds, products.least, products.by, products.ratio) == (4.0, 2.0, "products", 2.0)
    assert (updates.seconds, updates.least, updates.by, updates.ratio) == (2.0, 0.5, "memory", 4.0)


def test_what_has_no_least_time_says_why():
    table = found()
    reasons = {name: limit.why for name, limit in table.items() if limit.least is None}
    assert reasons == {"NCCL all-gather": LINKS, "elsewhere": NO_SIZES, "other": NO_SIZES}
    assert all(limit.ratio is None for limit in table.values() if limit.least is None)


def test_a_ceiling_that_was_not_measured_gives_none():
    half = limits.limits(SECONDS, WORKS, Ceilings(products=CEILINGS.products, skipped="no room"))
    table = {limit.name: limit for limit in half}
    assert (table["updates"].least, table["updates"].why) == (None, "no room") and table["products"].least == 2.0


def test_all_that_is_counted():
    whole = limits.total([*found().values()])
    assert (whole.seconds, whole.least) == (6.0, 2.5) and whole.ratio == pytest.approx(2.4)
    assert limits.total([]) is None


def test_rows_and_markdown():
    cells = limits.rows([*found().values()])
    assert cells[0] == ("products", "4000.00", "2000.00", "products", "2.00")
    assert cells[2] == ("NCCL all-gather", "500.00", "–", LINKS, "–")
    assert cells[-1][:3] == (limits.COUNTED, "6000.00", "2500.00") and cells[-1][4] == "2.40"
    text = "\n".join(limits.markdown([*found().values()], CEILINGS))
    assert "| updates | 2000.00 | 500.00 | memory | 4.00 |" in text and "5 x 5 x 2" in text
    assert "|" not in "\n".join(limits.markdown([], Ceilings(skipped="there is no GPU")))
