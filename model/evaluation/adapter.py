"""NAM56R as a model of lm-evaluation-harness. It is imported only where lm-eval is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from numpy.typing import NDArray
from tqdm import tqdm

from model.data.columns.structure import token_columns
from model.evaluation.likelihood import Score, Scored, Scorer
from model.evaluation.opening import Opened
from reproducers.base.errors import PatchlaneError


class Checkpoint(TemplateLM):
    """A checkpoint's likelihoods. Where there is no context the first token's is given an EOD, as the harness has it.

    Context that a row does not hold is cut off on its left; text that counts and does not fit into one row is read by
    rolling windows.
    """

    backend = "causal"

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self._tokenizer, self._language = opened.tokenizer, opened.encoding.language
        trained = opened.encoding.fields
        self._fields = [name for name in opened.size.structure.fields if name in trained]
        self._scorer = Scorer(opened.logits, opened.sequence, self._fields)

    @property
    def eot_token_id(self) -> int:
        """The EOD; the harness takes it for a text's beginning too."""
        return self._tokenizer.description.eod

    @property
    def prefix_token_id(self) -> int:
        return self.eot_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids without an EOD."""
        ids: list[int] = self._tokenizer.encode(string.encode()).ids.tolist()
        return ids

    def _annotated(self, text: str, count: int | None = None) -> Scored:
        """``text`` after an EOD, its columns as training has them; the last ``count`` tokens count, None for all."""
        encoded = self._tokenizer.encode(text.encode())
        columns: dict[str, NDArray[Any]] = {}
        if self._fields:
            made = token_columns(text.encode(), encoded.ends, self._language)
            columns = {name: np.append(0, made[name]) for name in self._fields}
        count = len(encoded.ids) if count is None else count
        return Scored(np.append(self.eot_token_id, encoded.ids), columns, count)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """((context, continuation), their tokens) of each -> (log-likelihood of the continuation in nats, greedy)."""
        sequences = []
        for (context, continuation), before, scored in requests:
            whole = self._annotated(context + continuation, len(scored))
            if before and before != [self.eot_token_id]:  # a document begins with its first token, as in training
                columns = {name: column[1:] for name, column in whole.columns.items()}
                whole = Scored(whole.ids[1:], columns, len(scored))
            sequences.append(whole)
        return [(score.log_likelihood, score.greedy) for score in self._scored(sequences)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text, in nats."""
        return [one.log_likelihood for one in self._scored([self._annotated(req.args[0]) for req in requests])]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Refused: the forward pass of training keeps no states from which to go on."""
        raise PatchlaneError(
            "a task that has text generated cannot be run on the forward pass of training",
            "choose tasks of output_type loglikelihood, loglikelihood_rolling or multiple_choice",
        )

    def _scored(self, sequences: list[Scored]) -> list[Score]:
        total = sum(-(-one.count // self._scorer.sequence) for one in sequences)
        with tqdm(total=total, desc="likelihoods", disable=None) as bar:
            scores: list[Score] = self._scorer(sequences, bar.update)
        return scores
