"""What a spike is: above the median of the losses before it by so many median absolute deviations."""

import collections
import math

import pytest

from model.definition.recipes import Recipe
from model.loop.ranks.spikes import Spikes, limit


def test_the_limit_is_of_the_median_and_its_deviation():
    recent = collections.deque([5.0, 4.0, 3.0, 2.0, 100.0])
    assert limit(recent, 5, 10) == 4.0 + 10 * 1.0
    assert limit(recent, 6, 10) == math.inf


def test_a_loss_that_stands_still_does_not_spike_by_rounding():
    assert limit(collections.deque([2.0] * 8), 8, 10) == pytest.approx(2.02)


def test_a_run_that_stops_judges_nothing_and_a_checkpoint_brings_the_losses_back():
    spikes = Spikes(Recipe(size="nam56r_tiny"))
    assert spikes.after(1, math.nan, 1.0) is None
    assert spikes.state_dict() == {"recent": [], "skips": 0}
    other = Spikes(Recipe(size="nam56r_tiny", on_spike="rewind", spike_window=4))
    other.load_state_dict({"recent": [1.0, 2.0, 3.0, 4.0, 5.0], "skips": 1})
    assert other.state_dict() == {"recent": [2.0, 3.0, 4.0, 5.0], "skips": 1}
