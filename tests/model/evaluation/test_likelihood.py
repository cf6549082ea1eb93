"""Windows over texts that a row does not hold, and rows of many sequences."""

import numpy as np
import pytest
import torch

from model.evaluation.likelihood import Scored, Scorer, Window, windows


def test_a_text_that_fits_is_one_window():
    assert windows(5, 4, 4) == [Window(0, 4, 4)]
    assert windows(5, 2, 8) == [Window(0, 4, 2)]
    assert windows(1, 0, 8) == []


def test_context_that_does_not_fit_is_cut_on_its_left():
    assert windows(10, 3, 4) == [Window(5, 9, 3)]


def test_what_counts_and_does_not_fit_rolls_as_the_harness_shows():
    """The example of ``LM.loglikelihood_rolling``: a prefix and tokens 0 to 9, four at a time."""
    found = windows(11, 10, 4)
    assert found == [Window(0, 4, 4), Window(4, 8, 4), Window(6, 10, 2)]


@pytest.mark.parametrize("most", [1, 3, 4, 7, 64])
def test_windows_are_the_harnesss_and_each_token_counts_once(most):
    utils = pytest.importorskip("lm_eval.utils", reason="lm-eval is not installed: pip install -e .[evaluate]")
    for length in range(2, 30):
        whole = list(range(length))
        rolled = utils.get_rolling_token_windows(whole[1:], whole[0], most, 1)
        pairs = [utils.make_disjoint_window(pair) for pair in rolled]
        wanted = [((a + b)[:-1], b) for a, b in pairs]
        found = windows(length, length - 1, most)
        if length - 1 > most:
            assert [(whole[w.low : w.high], whole[w.high + 1 - w.count : w.high + 1]) for w in found] == wanted
        for count in range(1, length):
            parts = [range(w.high + 1 - w.count, w.high + 1) for w in windows(length, count, most)]
            assert [token for part in parts for token in part] == list(range(length - count, length))
            assert all(0 <= w.low < w.high <= w.low + most for w in windows(length, count, most))


class Counting:
    """In the network's place: the logit of token t after token v at position p is -(v + p - t)^2; it keeps its rows."""

    def __init__(self, vocab):
        self.vocab, self.rows = vocab, []

    def __call__(self, tokens, positions, cu_seqlens, fields):
        self.rows.append((tokens.tolist(), cu_seqlens.tolist(), fields))
        after = (tokens + positions)[:, None].double()
        return -((after - torch.arange(self.vocab)) ** 2)


def test_sequences_share_rows_and_get_their_own_sums():
    draw, sequences = np.random.default_rng(0), []
    for length in (3, 5, 2, 9, 17, 4, 1):
        ids = draw.integers(0, 6, length)
        sequences.append(Scored(ids, {"structure": ids % 3}, min(length - 1, 1 + length // 2)))
    sequences.append(Scored(np.array([2, 2, 3]), {"structure": np.zeros(3, int)}, 2))
    network = Counting(12)
    scores = Scorer(network, 8, ["structure"])(sequences)
    for one, score in zip(sequences, scores, strict=True):
        total, likeliest = 0.0, True
        for window in windows(len(one.ids), one.count, 8):
            for at in range(window.high - window.count, window.high):
                logits = -((one.ids[at] + at - window.low - np.arange(12.0)) ** 2)
                total += logits[one.ids[at + 1]] - np.log(np.exp(logits).sum())
                likeliest &= int(logits.argmax()) == one.ids[at + 1]
        assert score.log_likelihood == pytest.approx(total, rel=1e-12) and score.greedy == likeliest
    assert scores[-1].greedy and not all(score.greedy for score in scores)
    for tokens, bounds, fields in network.rows:
        assert len(tokens) == len(fields["structure"]) == bounds[-1] == 8
    assert len(network.rows) < sum(len(windows(len(one.ids), one.count, 8)) for one in sequences)
