"""Activations computed again for the backward pass: the same run, shared indices, expert counts and all."""

import pytest
from train_kit import good, measured, train

pytestmark = pytest.mark.upstream
COMMON = {"steps": 4, "save_every": 0, "evaluate_every": 4}


def test_a_run_that_recomputes_is_the_same_run(stack, text, tmp_path):
    good(train(stack, tmp_path / "kept", text, **COMMON))
    good(train(stack, tmp_path / "again", text, recompute=True, **COMMON))
    assert measured(tmp_path / "again") == measured(tmp_path / "kept")
