"""Cases that the probe draws: the same for a seed, and no fix for one of them passes."""

import pytest
from hypothesis import strategies as st
from toy import edited

from reproducers.base.verdicts import Verdict
from reproducers.probe.checks import bits_sha256, worst_drawn

SPACE = {"size": st.integers(1, 40), "dtype": st.sampled_from(["fp32", "bf16"])}
DRAWN = """
from hypothesis import strategies as st
from reproducers import probe


def minimal():
    raise AssertionError


def reproduce(p):
    core = p.upstream("toyup.core")

    def off(size):
        return abs(core.total(range(1, size + 1)) - size * (size + 1) / 2)

    p.drawn("drawn total", off, 1e-9, space={"size": st.integers(1, 40)}, count=30, reference="n(n+1)/2", bug_above=0.5)


if __name__ == "__main__":
    probe.main(reproduce, pack=1, package="toyup", minimal=minimal)
"""


def drawn(seed: int) -> list[dict[str, object]]:
    cases: list[dict[str, object]] = []

    def measure(**case: object) -> float:
        cases.append(case)
        return 0.0

    worst_drawn(measure, SPACE, 20, seed, lambda value: False)
    return cases


def test_a_seed_draws_the_same_cases_and_another_seed_others():
    assert drawn(0) == drawn(0) != drawn(1)


def test_the_worst_is_told_and_a_bad_one_is_the_simplest():
    def measure(size: int, dtype: str) -> float:
        return size if size > 4 else 0.0

    worst, told = worst_drawn(measure, SPACE, 30, 0, lambda value: value > 0)
    assert worst > 5
    assert "size 5" in told


def test_what_is_no_number_is_the_worst():
    assert worst_drawn(lambda size, dtype: float("nan"), SPACE, 5, 0, lambda value: False)[0] == float("inf")


def test_errors_are_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        worst_drawn(lambda size, dtype: 1 / 0, SPACE, 5, 0, lambda value: False)


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("    for value in values:", Verdict.REPRODUCED_AND_FIXED),
        ("    for value in values if len(values) < 9 else values[1:]:", Verdict.FIX_INEFFECTIVE),
        ("    for value in [*values, *([2e-10] if len(values) == 7 else [])]:", Verdict.REPRODUCED_AND_FIXED),
        ("    for value in [*values, *([0.1] if len(values) > 6 else [])]:", Verdict.DIFFERENT_FAILURE),
    ],
)
def test_a_fix_for_some_cases_is_refused(toy, line, verdict):
    pack = toy.pack(toy.patch(edited(("    for value in values[1:]:", line))))
    pack.reproducer.write_text(DRAWN)
    run = toy.run(pack)
    assert run.ruling.verdict is verdict, run.ruling
    check = run.patched[-1].checks[-1] if run.patched else None
    assert check is not None
    assert check.name == "drawn total"
    assert ("simplest bad: size 7" in check.detail) == (verdict is Verdict.DIFFERENT_FAILURE)


def test_bits_do_not_depend_on_strides():
    torch = pytest.importorskip("torch")
    for values in (torch.arange(12).view(3, 4), torch.arange(3.0), torch.arange(1)):
        spread = values.repeat_interleave(2, dim=0)[::2]
        assert bits_sha256((spread,)) == bits_sha256((values,))
    assert bits_sha256((torch.arange(1),)) != bits_sha256((torch.arange(1, 2),))
