"""A model as a Megatron-Core HybridModel: head and loss fused, documents kept apart. NAM56R as one: entrance embeddings
added."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.multi_token_prediction import roll_tensor
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor

from model.exported.ngram import NgramHashEmbedding
from model.exported.structure_embedding import StructureEmbedding
from model.families import pattern
from model.families.family import Family
from model.families.nam56r import Size
from model.kinds import catalogue
from model.kinds.path import Choice, called
from model.kinds.run import Run
from model.layers.ends import head
from model.layers.spec import hybrid_stack
from model.patched import dialect
from model.step import megatron
from patchlane.base.errors import PatchlaneError


class Network(HybridModel):
    """One pipeline stage of a model; what its architecture alone has is in the methods that ``Nam56r`` has too."""

    def __init__(
        self, size: Family, run: Run, chosen: dict[str, Choice], pre_process: bool = True, post_process: bool = True
    ) -> None:
        """``chosen``: every kind's path, from ``catalogue.choose``."""
        config = self._configuration(size, run, chosen)
        taken = [catalogue.PARTS[kind].path(choice.name) for kind, choice in chosen.items()]
        cuts = pattern.even_cuts(size.layers, run.pipeline_parallel)
        try:
            super().__init__(
                config=config,
                hybrid_stack_spec=self._stack(size, chosen, run.on_cpu),
                vocab_size=size.vocab,
                max_sequence_length=size.sequence,
                pre_process=pre_process,
                post_process=post_process,
                hybrid_layer_pattern=pattern.megatron_pattern(
                    size.layers, size.mtp, size.mtp_depths, cuts, dialect.SYMBOLS
                ),
            )
        except PatchlaneError as error:
            raise _first(error) from None
        if hasattr(self, "embedding"):  # of the first stage, and the last one's copy for MTP
            self.embedding.word_embeddings.weight._no_weight_decay = True
        self._complete(size)
        self.own_head = chosen["loss"].name != "linear"
        self._shares: Iterator[Any] = itertools.repeat(1.0)
        self._counted: Iterator[Tensor | None] = itertools.repeat(None)
        for path in taken:
            if path.install:
                called(path.install)(self)
        catalogue.announce(self._paths())

    def _configuration(self, size: Any, run: Run, chosen: dict[str, Choice]) -> Any:
        """Megatron's configuration."""
        raise NotImplementedError

    def _stack(self, size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
        """The spec of the layers and of MTP."""
        raise NotImplementedError

    def _complete(self, size: Any) -> None:
        """Build what Megatron's HybridModel has no place for."""

    def _entrance(self, tokens: Tensor, positions: Tensor, fields: Mapping[str, Tensor] | None) -> Tensor:
        """Of token ids and positions [1, T] what the first layer takes, [T, 1, channels of the residual]."""
        raise NotImplementedError

    def _carried(self, tokens: Tensor, packed_seq_params: PackedSeqParams) -> PackedSeqParams:
        """What every layer is given beside hidden states, of token ids [1, T] and the documents."""
        return packed_seq_params

    def _paths(self) -> Iterator[tuple[str, str, Choice]]:
        """(layer, label, path) of all that this stage computes."""
        size = self.config.model_size
        numbered = {layer.number: layer.kind for layer in size.layers}
        layers = [(str(layer.layer_number), numbered[layer.layer_number]) for layer in self.decoder.layers]
        if self.post_process:
            depths = len(self.mtp.layers) if self.mtp_process else 0
            inner = size.mtp.attention.name
            layers += [*((f"MTP-{depth}", inner) for depth in range(1, depths + 1)), ("head", "loss")]
        layers += [("all", name) for name in size.path_parts if not catalogue.PARTS[name].layers and name != "loss"]
        for layer, kind in layers:
            yield layer, catalogue.PARTS[kind].label, self.config.model_paths[kind]

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        positions: Tensor,
        packed_seq_params: PackedSeqParams,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        fields: Mapping[str, Tensor] | None = None,
        shares: Tensor | None = None,
    ) -> Tensor:
        """tokens, positions, labels, loss_mask [1, T]; fields [T] each; ``losses.shares`` [1 + depths], ones for None.

        Loss of each token [1, T] fp32, times the main loss's share, on the last stage given labels, logits
        [1, T, vocab] without; else what the next stage takes, [T, 1, channels of the residual].
        """
        # Megatron computes the losses of MTP's depths, then the main one
        self._shares = itertools.repeat(1.0) if shares is None else iter([*shares[1:], shares[0]])
        self._counted = self._rolled(loss_mask, packed_seq_params)
        packed_seq_params = self._carried(tokens, packed_seq_params)
        entrance = self._entrance(tokens, positions, fields) if self.pre_process else None
        output: Tensor = super().forward(
            tokens,
            positions,
            None,
            decoder_input=entrance,
            labels=labels,
            loss_mask=loss_mask,
            packed_seq_params=packed_seq_params,
        )
        return self.output_layer.logits(output) if self.post_process and labels is None and self.own_head else output

    def _rolled(self, loss_mask: Tensor | None, packed_seq_params: PackedSeqParams) -> Iterator[Tensor | None]:
        """Which tokens count [1, T] in each depth's loss, then in the main one; Nones where the loss does not ask."""
        if loss_mask is None or self.config.model_paths["loss"].name != "liger_once":
            return itertools.repeat(None)
        masks = [loss_mask]
        for _ in range(self.config.mtp_num_layers if self.mtp_process else 0):
            masks.append(roll_tensor(masks[-1], cp_group=self.pg_collection.cp, packed_seq_params=packed_seq_params)[0])
        return iter([*masks[1:], masks[0]])

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """labels [1, T], ``logits`` the hidden states [T, 1, h] of our head -> [1, T] fp32, times the next share."""
        path, counted = self.config.model_paths["loss"].name, next(self._counted)
        return head.loss(path, logits, self.output_layer.weight, labels, counted) * next(self._shares)

    def shared(self, _layer: Any, _given: Any, output: Any) -> Any:
        """Megatron's output layer computes losses [1, T] itself, or logits, in a tuple, where there are no labels."""
        return output * next(self._shares) if isinstance(output, Tensor) else output


class Nam56r(Network):
    """One pipeline stage of NAM56R."""

    def _configuration(self, size: Size, run: Run, chosen: dict[str, Choice]) -> Any:
        return megatron.megatron_config(size, run, chosen)

    def _stack(self, size: Size, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
        return hybrid_stack(size, chosen, on_cpu)

    def _complete(self, size: Size) -> None:
        if self.pre_process:
            n, s = size.ngram, size.structure
            self.ngram = NgramHashEmbedding(size.hidden, size.vocab, n.sizes, n.orders, n.heads, n.dim)
            self.structure = StructureEmbedding(size.hidden, s.fields, s.bottleneck)

    def _entrance(self, tokens: Tensor, positions: Tensor, fields: Mapping[str, Tensor] | None) -> Tensor:
        """[T, 1, h]: word embedding, n-gram hash embedding and, where the batch has fields, the structure's."""
        words: Tensor = self.embedding(input_ids=tokens, position_ids=positions)  # [T, 1, h]
        added = self.ngram(tokens[0], positions[0])
        if fields is not None:
            added = added + self.structure(fields)
        return words + added[:, None].to(words.dtype)


def _first(error: BaseException) -> BaseException:
    """A layer's own refusal: Megatron raises another of its type at each level, remedy and layer's name in one text."""
    while isinstance(error.__context__, PatchlaneError):
        error = error.__context__
    return error
