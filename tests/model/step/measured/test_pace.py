"""When a rank counts as slow."""

from model.step.measured.pace import INTERVALS, Slow


def test_a_rank_is_slow_after_intervals_in_a_row():
    slow, even = Slow(), [1.0, 1.0, 1.1, 1.0]
    late = [1.0, 1.0, 1.3, 1.0]
    found = [slow.after(seconds) for seconds in [late] * (INTERVALS - 1) + [even] + [late] * 2 * INTERVALS]
    assert [at for at, ranks in enumerate(found) if ranks] == [2 * INTERVALS - 1, 3 * INTERVALS - 1]
    assert found[-1] == [2]
    assert slow.after([]) == []


def test_of_two_ranks_the_quicker_one_is_the_measure():
    slow = Slow()
    assert [slow.after([1.0, 1.25]) for _ in range(INTERVALS)][-1] == [1]
    assert slow.after([1.0]) == []
