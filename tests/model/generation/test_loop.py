"""The loop: where a document ends, which tokens there are, and that none is read twice."""

from types import SimpleNamespace

import pytest
import torch

from model.data.source.tokenizers import ByteTokenizer
from model.generation import loop
from model.generation.loop import Writer
from model.generation.sampling import Sampling
from model.generation.text import Text

SIZE = SimpleNamespace(structure=SimpleNamespace(fields={"structure": 9, "dep_level": 16}))
EOD = ByteTokenizer.description.eod


class Counting:
    """After a byte comes the next one, then EOD after "e"; an id beyond the tokenizer's is always the likeliest."""

    lm_head = SimpleNamespace(weight=torch.empty(0))

    def __init__(self):
        self.read, self.fields, self.passes = [], [], []

    def begin(self, capacity):
        self.capacity = capacity

    def __call__(self, tokens, fields, state):
        self.passes.append(len(tokens))
        self.read += tokens.tolist()
        self.fields += zip(*(values.tolist() for values in fields.values()), strict=True)
        return tokens[:, None]

    def logits(self, hidden):
        following = torch.where(hidden[:, 0] == ord("e"), EOD, hidden[:, 0] + 1)
        return torch.nn.functional.one_hot(following, 320) + 2 * torch.nn.functional.one_hot(torch.tensor([300]), 320)


def written(prompt, limit):
    decoder = Counting()
    writer = Writer(
        decoder, Text(prompt, ByteTokenizer(), SIZE, ("structure",), "text"), ByteTokenizer.description, limit
    )
    text = b"".join(writer.write(writer.read(), Sampling(), 0))
    return decoder, writer.ended, text


def test_it_stops_at_the_end_of_the_document():
    decoder, ended, text = written(b"xa", 20)
    assert text == b"bcde" and (ended.tokens, ended.by_eod) == (4, True)
    assert bytes(decoder.read) == b"xabcde" and len(decoder.fields) == 6


def test_it_stops_after_its_tokens_and_reads_no_more():
    decoder, ended, text = written(b"xa", 3)
    assert text == b"bcd" and (ended.tokens, ended.by_eod) == (3, False)
    assert bytes(decoder.read) == b"xabc" and decoder.capacity == 5


def test_a_prompt_is_read_in_blocks(monkeypatch):
    monkeypatch.setattr(loop, "BLOCK", 3)
    decoder, _, text = written(b"1234567a", 2)
    assert decoder.passes == [3, 3, 2, 1] and text == b"bc"


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_repeat_by_their_seed(seed):
    def draw(of):
        writer = Writer(Even(), Text(b"x", ByteTokenizer(), SIZE, ("s",), "text"), ByteTokenizer.description, 30)
        return b"".join(writer.write(writer.read(), Sampling(1.0), of))

    assert draw(seed) == draw(seed) != draw(seed + 1)


class Even(Counting):
    def logits(self, hidden):
        return torch.zeros(len(hidden), 320)
