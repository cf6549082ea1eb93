"""NAM56R for transformers: ``AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)``, from 5.24 on.

Each row of a batch is a document of its own, which is computed alone: what it gives does not depend on its neighbours,
bit for bit, nor on padding, at whichever side. It is written for reading and for being right, in eager torch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import cached_file

from model.data.columns.incremental import Columns
from model.exported.dims import Dims
from model.exported.m2rnn import M2rnn
from model.exported.mamba3 import Mamba3
from model.exported.network import FP32, Network, State

BLOCK = 256  # tokens that are read at once where no gradient is wanted: bounds the memory of scores and states
PART_OF_CHARACTER = b"\x80"  # in each kind of text all bytes of a character that has several have the same columns


class Nam56rConfig(PretrainedConfig):  # type: ignore[misc]
    """``network``: the dimensions, as ``Dims.of`` reads them. ``fields``: the side columns of the text that the model
    was trained with, made of the text by its ``language``; none for a model that was trained without. ``tokenizer``:
    "byte", or "hf" for the ``tokenizer.json`` beside the weights."""

    model_type = "nam56r"

    def __init__(
        self,
        network: dict[str, Any] | None = None,
        fields: list[str] | None = None,
        language: str = "text",
        tokenizer: str = "byte",
        use_cache: bool = True,
        **more: Any,
    ) -> None:
        self.network, self.fields, self.language, self.tokenizer = network, fields or [], language, tokenizer
        self.use_cache = use_cache
        super().__init__(**more)


@dataclass
class Row:
    """A document of a batch: its state, and its text so far as far as columns need it."""

    state: State
    columns: Columns | None
    stream: Any = None  # a tokenizer's, from ids to text


class Nam56rCache:
    """The states of a batch's documents. ``seen``: columns of tokens and padding that were read."""

    is_compileable = False

    def __init__(self, rows: list[Row]) -> None:
        self.rows, self.seen = rows, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i goes on from what is row ``beam_idx[i]`` now."""
        self.rows = [copy.deepcopy(self.rows[at]) for at in beam_idx.tolist()]


class Nam56rForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The main stack and the head. Its MTP depths, which only training uses, are in the files and are passed over."""

    config_class = Nam56rConfig
    base_model_prefix = "model"
    _is_stateful = True
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = [*FP32]
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"^model\.mtp\."]

    def __init__(self, config: Nam56rConfig) -> None:
        super().__init__(config)
        network = Network(Dims.of(config.network or {}))
        self.ngram, self.structure, self.model = network.ngram, network.structure, network.model
        self.lm_head = network.lm_head
        self.__dict__["network"] = network  # of the same modules: registered, each tensor would have two names
        self.__dict__["file"] = None  # the tokenizer's, once it is needed
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        found: nn.Module = self.model["embed_tokens"]
        return found

    def get_output_embeddings(self) -> nn.Module:
        found: nn.Module = self.lm_head
        return found

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Of a model without weights: small matrices, and recurrences that forget as those of training begin."""
        super()._init_weights(module)
        if isinstance(module, M2rnn):
            module.W.copy_(torch.eye(module.v_dim).expand_as(module.W))
            module.conv_weight.normal_(std=0.02), module.conv_bias.zero_()
            module.A_log.uniform_(1, 16).log_()
        if isinstance(module, (Mamba3, M2rnn)):
            module.dt_bias.uniform_(-7, -2), module.D.fill_(1)
        if isinstance(module, Mamba3):
            for part in (module.B_bias, module.C_bias, *((module.mimo_x, module.mimo_z) if module.mimo else ())):
                part.fill_(1)
            if module.mimo:
                module.mimo_o.fill_(1 / module.rank)
        if hasattr(module, "e_score_correction_bias"):
            module.weight.normal_(std=0.02), module.e_score_correction_bias.zero_()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Nam56rCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        structure: Mapping[str, Tensor] | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """``input_ids`` [B, S] int64 -> ``logits`` [B, S, vocab], 0 where ``attention_mask`` [B, seen + S] is 0.

        ``cache``: the documents so far, which go on. ``labels`` [B, S], -100 where none: the mean loss of the token
        after each. ``logits_to_keep``: of the last so many columns alone, 0 for all. ``structure``: {field: [B, S]} in
        place of the columns that the text itself gives. Raises ValueError for what the model does not compute.
        """
        for name in ("inputs_embeds", "output_attentions", "output_hidden_states"):
            if kwargs.get(name) is not None and kwargs[name] is not False:
                raise ValueError(f"{name}: this model takes token ids and gives logits")
        count, length = input_ids.shape
        if cache is None:
            cache = Nam56rCache([self._begin() for _ in range(count)])
        if len(cache.rows) != count:
            raise ValueError(f"a cache of {len(cache.rows)} documents for a batch of {count}")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -length:]
        if mask.shape != input_ids.shape:
            raise ValueError(f"attention_mask {[*mask.shape]} for token ids {[*input_ids.shape]}")
        first = max(length - logits_to_keep, 0) if logits_to_keep else 0
        rows = []
        for at, row in enumerate(cache.rows):
            places = mask[at].nonzero()[:, 0]
            given = None if structure is None else {name: column[at, places] for name, column in structure.items()}
            rows.append(self._row(row, input_ids[at, places], given, places - first, length - first))
        cache.seen += length
        logits = torch.stack(rows)
        loss = None
        if labels is not None:
            wanted = labels[:, first:][:, 1:].flatten()
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted, ignore_index=-100)
        keep = self.config.use_cache if use_cache is None else use_cache
        found = CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache if keep else None)
        return found if return_dict is not False else found.to_tuple()

    def _begin(self) -> Row:
        columns = Columns(self.config.language) if self.config.fields else None
        return Row(self.network.begin(0), columns)

    def _row(self, row: Row, tokens: Tensor, given: Mapping[str, Tensor] | None, places: Tensor, width: int) -> Tensor:
        """The logits [width, vocab] of a document's next tokens [n] at these places [n], where they are not below 0."""
        out = self.lm_head.weight.new_zeros(width, len(self.lm_head.weight))
        if not len(tokens):
            return out
        fields = given if given is not None else self._fields(row, tokens)
        block, hidden = len(tokens) if torch.is_grad_enabled() else BLOCK, []
        for at in range(0, len(tokens), block):
            part = slice(at, at + block)
            taken = None if fields is None else {name: column[part] for name, column in fields.items()}
            hidden.append(self.network(tokens[part], taken, row.state))
        kept = places >= 0
        return out.index_copy(0, places[kept], self.network.logits(torch.cat(hidden)[kept]))

    def _fields(self, row: Row, tokens: Tensor) -> dict[str, Tensor] | None:
        """The columns of a document's next tokens, {field: int64 [n]}, by its text; those of the end of a document are
        0. None for a model without."""
        if row.columns is None:
            return None
        found: dict[str, list[int]] = {name: [] for name in self.config.fields}
        for token in tokens.tolist():
            text = self._text(row, token)
            if text is None:
                columns: Mapping[str, Any] = {}
            else:
                columns = row.columns.push(text) if text else row.columns.peek(PART_OF_CHARACTER)
            for name, values in found.items():
                values.append(int(columns[name][-1]) if columns else 0)
        return {name: torch.tensor(values, device=tokens.device) for name, values in found.items()}

    def _text(self, row: Row, token: int) -> bytes | None:
        """What ``token`` adds to a document's text: b"" inside of a character, None for what is no text."""
        if token == self.config.eos_token_id:
            return None
        if self.config.tokenizer == "byte":
            return bytes([token]) if token < 256 else None
        if row.stream is None:
            row.stream = DecodeStream(skip_special_tokens=False)
        return (row.stream.step(self._tokenizer(), token) or "").encode()

    def _tokenizer(self) -> Tokenizer:
        """Of the ``tokenizer.json`` where the model came from. Raises OSError where there is none."""
        found: Tokenizer | None = self.__dict__["file"]
        if found is None:
            found = Tokenizer.from_file(cached_file(self.config._name_or_path, "tokenizer.json"))
            self.__dict__["file"] = found
        return found
