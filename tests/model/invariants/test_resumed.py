"""What is loaded is compared with what was saved: a moment that is shifted by one element is named on both ranks."""

import pytest
from train_kit import good, train

pytestmark = pytest.mark.upstream


@pytest.mark.parametrize("fault", [False, True])
def test_a_shifted_moment_is_named(fault, stack, text):
    ended = [child.wait() for child in stack.ranks(2, "planted_invariants:loaded", str(text), fault)]
    good(ended)
    for one in ended:
        assert one.value.startswith("step_0000001: resumed: exp_avg of ") if fault else one.value == ""


@pytest.mark.long
def test_a_run_that_goes_on_in_another_layout_has_what_was_saved(stack, text, tmp_path):
    common = {"save_every": 2, "evaluate_every": 9, "bf16": True, "invariants": 100}
    good(train(stack, tmp_path, text, steps=2, world=2, ep=2, **common))
    good(train(stack, tmp_path, text, steps=4, world=1, **common))
    good(train(stack, tmp_path, text, steps=6, world=2, pp=2, **common))
