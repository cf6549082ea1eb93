"""Greedy and drawn tokens."""

import pytest
import torch

from model.generation.sampling import Sampling, choose
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit

LOGITS = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()  # the tokens' probabilities


def drawn(count=400, **settings):
    """How often each token was drawn."""
    generator, by = torch.Generator().manual_seed(0), Sampling(**settings)
    return torch.tensor([choose(LOGITS, by, generator) for _ in range(count)]).bincount(minlength=4) / count


def test_without_a_temperature_it_is_the_likeliest_and_the_first_of_equals():
    assert choose(LOGITS, Sampling(), torch.Generator()) == 0
    assert choose(torch.tensor([1.0, 2.0, 2.0]), Sampling(), torch.Generator()) == 1


def test_draws_have_the_model_s_probabilities():
    assert drawn(temperature=1.0).tolist() == pytest.approx([0.4, 0.1, 0.3, 0.2], abs=0.06)


def test_a_temperature_sharpens_them():
    assert drawn(temperature=0.5)[0].item() == pytest.approx(0.16 / 0.30, abs=0.06)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"top_k": 1}, [0]),
        ({"top_k": 3}, [0, 2, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.39}, [0]),
        ({"top_p": 0.41}, [0, 2]),
        ({"top_p": 0.71}, [0, 2, 3]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"top_k": 2, "top_p": 0.58}, [0, 2]),
        ({"top_k": 2, "top_p": 0.56}, [0]),
    ],
    ids=str,
)
def test_unlikely_tokens_are_left_out(settings, left):
    """``top_p`` is of what ``top_k`` leaves: of 0.4 and 0.3 the first has 0.571."""
    assert drawn(temperature=1.0, **settings).nonzero().flatten().tolist() == left


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1, "top_k": 0},
        {"temperature": 1, "top_p": 0.0},
        {"temperature": 1, "top_p": 1.1},
        {"top_k": 3},
        {"top_p": 0.5},
    ],
    ids=str,
)
def test_what_means_nothing_is_refused(settings):
    with pytest.raises(PatchlaneError) as refused:
        Sampling(**settings)
    assert refused.value.exit_code is Exit.USAGE and refused.value.remedy.startswith("--")


@pytest.mark.parametrize("temperature", [1e-300, 1e-308, 5e-324])
def test_a_temperature_near_0_takes_the_likeliest(temperature):
    """Divided by it the logits themselves would overflow."""
    generator = torch.Generator().manual_seed(0)
    for logits in (LOGITS, LOGITS + 40, torch.tensor([-float("inf"), -3.0, -2.0])):
        assert choose(logits, Sampling(temperature), generator) == int(logits.argmax())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_logits_that_are_no_numbers_are_refused(bad, temperature):
    with pytest.raises(PatchlaneError) as refused:
        choose(torch.tensor([1.0, float(bad), 2.0]), Sampling(temperature), torch.Generator())
    assert bad in refused.value.what and refused.value.remedy
    with pytest.raises(PatchlaneError):
        choose(torch.full((3,), -float("inf")), Sampling(temperature), torch.Generator())
