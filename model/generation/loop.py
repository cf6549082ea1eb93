"""From a prompt to the document's end, one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from model.data.source.tokenizers import TokenizerDescription
from model.exported.network import Network
from model.generation.sampling import Sampling, choose
from model.generation.text import Fields, Text

BLOCK = 256  # tokens of a prompt that are read at once: bounds the memory of scores and states


@dataclass
class Ended:
    """``tokens`` that were written, an EOD not among them, and whether one ended the document."""

    tokens: int = 0
    by_eod: bool = False


class Writer:
    """A network in a document."""

    def __init__(self, network: Network, text: Text, tokenizer: TokenizerDescription, limit: int) -> None:
        """``tokenizer``: the model may have more ids, which mean nothing. ``limit``: tokens to write at most."""
        self.network, self.text, self.limit = network, text, limit
        self.vocab, self.eod = tokenizer.vocab_size, tokenizer.eod
        self.device = network.lm_head.weight.device
        self.state = network.begin(len(text.ids) + limit)
        self.ended = Ended()

    def _tensors(self, fields: Fields | None) -> dict[str, Tensor] | None:
        """As int64 on the device."""
        if fields is None:
            return None
        return {name: torch.from_numpy(values).to(self.device, torch.int64) for name, values in fields.items()}

    @torch.inference_mode()
    def read(self, advance: Callable[[int], None] = lambda tokens: None) -> Tensor:
        """Read the prompt; the logits [vocab] of what follows it. ``advance`` is called with tokens read."""
        ids, fields = torch.from_numpy(self.text.ids).to(self.device), self._tensors(self.text.fields)
        hidden = ids.new_empty(0)
        for at in range(0, len(ids), BLOCK):
            block = slice(at, at + BLOCK)
            given = None if fields is None else {name: values[block] for name, values in fields.items()}
            hidden = self.network(ids[block], given, self.state)
            advance(len(hidden))
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.network.logits(hidden[-1:])[0, : self.vocab]

    @torch.inference_mode()
    def write(self, logits: Tensor, by: Sampling, seed: int) -> Iterator[bytes]:
        """The text that follows, token by token, from ``read``'s logits on; ``ended`` says how it ended."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            token = choose(logits, by, generator)
            if token == self.eod:
                self.ended.by_eod = True
                return
            piece, fields = self.text.write(token)
            self.ended.tokens += 1
            yield piece
            if self.ended.tokens == self.limit:
                return
            one = torch.tensor([token], device=self.device)
            logits = self._logits(self.network(one, self._tensors(fields), self.state))
