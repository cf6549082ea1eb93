"""Samples that are left out: which come in their place."""

from model.data.rows.left_out import merged, place


def test_places_step_over_what_is_left_out():
    spans = [(2, 4), (6, 7)]
    assert [place(taken, spans) for taken in range(6)] == [0, 1, 4, 5, 7, 8]
    assert place(5, []) == 5
    assert place(0, [(0, 3), (3, 4)]) == 4


def test_spans_are_put_in_order_and_joined():
    assert merged([(5, 8), (1, 2), (7, 9), (9, 10), (4, 4)]) == [(1, 2), (5, 10)]
