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
from patchlane.base.errors import PatchlaneError


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
        return self._columned(text, encoded.ids, encoded.ends, len(encoded.ids) if count is None else count)

    def _columned(self, text: str, ids: NDArray[Any], ends: NDArray[Any], count: int) -> Scored:
        """``text``'s tokens [n], which end at these bytes, after an EOD, with its columns."""
        columns: dict[str, NDArray[Any]] = {}
        if self._fields:
            made = token_columns(text.encode(), ends, self._language)
            columns = {name: np.append(0, made[name]) for name in self._fields}
        return Scored(np.append(self.eot_token_id, ids), columns, count)

    def _apart(self, context: str, continuation: str) -> Scored:
        """Both as one text, encoded one by one: where they share a token, together they leave the continuation none.

        As in the harness white space between them is the continuation's.
        """
        context, continuation = (kept := context.rstrip()), context[len(kept) :] + continuation
        first, second = (self._tokenizer.encode(text.encode()) for text in (context, continuation))
        return self._columned(
            context + continuation,
            np.append(first.ids, second.ids),
            np.append(first.ends, second.ends + len(context.encode())),
            len(second.ids),
        )

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood of the continuation in nats, greedy) of each. Raises PatchlaneError for one of no token."""
        self._require(requests, 1)
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return answers

    def _require(self, requests: list[Any], at: int) -> None:
        """Raise PatchlaneError for a text to be scored that has no token: its likelihood of 1 would be the best."""
        for one in requests:
            if not self.tok_encode(text := one.args[at]):
                raise PatchlaneError(
                    f"{one.task_name or 'a task'}, document {one.doc_id}: {text!r} has no token, so no likelihood",
                    "leave the document out of the task's data, or the empty answer out of its choices",
                )

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """((context, continuation), their tokens) of each -> (log-likelihood of the continuation in nats, greedy)."""
        sequences = []
        for (context, continuation), before, scored in requests:
            whole = (
                self._annotated(context + continuation, len(scored)) if scored else self._apart(context, continuation)
            )
            if before and before != [self.eot_token_id]:  # a document begins with its first token, as in training
                columns = {name: column[1:] for name, column in whole.columns.items()}
                whole = Scored(whole.ids[1:], columns, whole.count)
            sequences.append(whole)
        return [(score.log_likelihood, score.greedy) for score in self._scored(sequences)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text, in nats. Raises PatchlaneError for one of no token."""
        self._require(requests, 0)
        return [one.log_likelihood for one in self._scored([self._annotated(req.args[0]) for req in requests])]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Refused: the forward pass of training keeps no states from which to go on."""
        raise PatchlaneError(
            "a task that has text generated cannot be run on the forward pass of training",
            "python -m model.weights export RUN DIR, then "
            "lm_eval run --model hf --model_args pretrained=DIR,trust_remote_code=True --tasks TASK",
        )

    def _scored(self, sequences: list[Scored]) -> list[Score]:
        total = sum(-(-one.count // self._scorer.sequence) for one in sequences)
        with tqdm(total=total, desc="likelihoods", disable=None) as bar:
            scores: list[Score] = self._scorer(sequences, bar.update)
        return scores
