"""A warning that comes a thousand times buries nothing, and nothing that reports a result is left out."""

from reproducers.base.wording import KEPT, collapsed

SAID = "CPU RNG state changed within GPU RNG context"
CHECK = "[   passed] sum: 0 (limit 0.1) vs 2"
TRACE = ["Traceback (most recent call last):", '  File "toy.py", line 3, in add', "ValueError: no"]
WARNED = ["toy.py:3: UserWarning: slow", "  warnings.warn("]


def test_a_repeated_line_is_kept_a_few_times_and_counted():
    assert collapsed([SAID] * 1282 + [CHECK]) == [SAID] * KEPT + [CHECK, f"(1,279 more times: {SAID})"]
    assert collapsed(WARNED * 10)[: 2 * KEPT + 1] == [*WARNED * KEPT, f"({10 - KEPT} more times: {WARNED[0]})"]


def test_checks_records_and_tracebacks_are_kept_whole():
    for lines in ([CHECK] * 9, ['{"checks": []}'] * 9, TRACE * 9, [f"step {n}" for n in range(9)]):
        assert collapsed(lines) == lines
