"""NAM56R as a Megatron-Core HybridModel: entrance embeddings added, head and loss fused, documents kept apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from model.definition import pattern
from model.definition.sizes import Size
from model.layers import head
from model.layers.common import paths
from model.layers.common.paths import Path
from model.layers.entrance.ngram import NgramHashEmbedding
from model.layers.entrance.structure import StructureEmbedding
from model.layers.experts import wgrad
from model.layers.spec import hybrid_stack
from model.step import megatron
from model.step.megatron import Run
from reproducers.base.errors import PatchlaneError


class Nam56r(HybridModel):
    """One pipeline stage of NAM56R."""

    def __init__(self, size: Size, run: Run, pre_process: bool = True, post_process: bool = True) -> None:
        config = megatron.megatron_config(size, run)
        fused = config.gradient_accumulation_fusion
        if fused:
            wgrad.stand_in()
        cuts = pattern.even_cuts(size.layers, run.pipeline_parallel)
        try:
            super().__init__(
                config=config, hybrid_stack_spec=hybrid_stack(size, config.nam56r_chosen["moe"].name),
                vocab_size=size.vocab, max_sequence_length=size.sequence,
                pre_process=pre_process, post_process=post_process,
                hybrid_layer_pattern=pattern.megatron_pattern(size.layers, size.mtp_depths, cuts),
            )  # fmt: skip
        except PatchlaneError as error:
            raise _first(error) from None
        if pre_process:
            n, s = size.ngram, size.structure
            self.ngram = NgramHashEmbedding(size.hidden, size.vocab, n.rows, n.orders, n.heads, n.dim)
            self.structure = StructureEmbedding(size.hidden, s.fields, s.bottleneck)
        if post_process:
            self.output_layer.__class__ = head.Head
            self.loss_path = paths.choose("loss", config.nam56r_paths["loss"], head.available())
        if fused:
            wgrad.enable(self)
        self._keep_router_state()
        paths.announce(self._paths())

    def _paths(self) -> Iterator[tuple[str, str, Path]]:
        """(layer, kind for people, path) of all that this stage computes."""
        kinds = {layer.number: layer.kind for layer in self.config.nam56r_size.layers}
        for layer in self.decoder.layers:
            yield str(layer.layer_number), *_path_of(layer, kinds[layer.layer_number], self.config)
        if self.post_process:
            for depth, layer in enumerate(self.mtp.layers if self.mtp_process else (), 1):
                yield f"MTP-{depth}", *_path_of(layer.mtp_model_layer.layers[0], "mla", self.config)
            yield "head", "cross entropy", self.loss_path
        for kind, name in (("indexer", "indexer's loss"), ("shared", "shared experts"), ("wgrad", "weight gradients")):
            yield "all", name, self.config.nam56r_chosen[kind]

    def _keep_router_state(self) -> None:
        """Leave the routers' selection bias and token counts, which it follows, out of the cast to bf16.

        Megatron makes the bias fp32 again at the next forward, the counts never: a bf16 count of 1,300 reads 1,240.
        """
        for path, buffer in self.named_buffers():
            if path.endswith(("router.expert_bias", "router.local_tokens_per_expert")):
                buffer._keep_fp32 = True

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        positions: Tensor,
        packed_seq_params: PackedSeqParams,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        fields: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """tokens, positions, labels, loss_mask [1, T]; fields [T] each.

        Loss of each token [1, T] fp32 on the last stage given labels, logits [1, T, vocab] without; else the hidden
        states [T, 1, h] for the next stage.
        """
        entrance = self._entrance(tokens, positions, fields) if self.pre_process else None
        found: Tensor = super().forward(
            tokens, positions, None, decoder_input=entrance, labels=labels, loss_mask=loss_mask,
            packed_seq_params=packed_seq_params,
        )  # fmt: skip
        return self.output_layer.logits(found) if self.post_process and labels is None else found

    def _entrance(self, tokens: Tensor, positions: Tensor, fields: Mapping[str, Tensor] | None) -> Tensor:
        """[T, 1, h]: word embedding, n-gram hash embedding and, where the batch has fields, the structure's."""
        words: Tensor = self.embedding(input_ids=tokens, position_ids=positions)  # [T, 1, h]
        added = self.ngram(tokens[0], positions[0])
        if fields is not None:
            added = added + self.structure(fields)
        return words + added[:, None].to(words.dtype)

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """labels [1, T], ``logits`` the hidden states [T, 1, h] of our head -> [1, T] fp32."""
        return head.loss(self.loss_path, logits, self.output_layer.weight, labels)


def _first(error: BaseException) -> BaseException:
    """A layer's own refusal: Megatron raises another of its type at each level, remedy and layer's name in one text."""
    while isinstance(error.__context__, PatchlaneError):
        error = error.__context__
    return error


def _path_of(layer: Any, kind: str, config: Any) -> tuple[str, Path]:
    """A layer's kind for people, and its path."""
    if kind in ("mamba3", "m2rnn"):
        return layer.kind, layer.path
    if kind == "mla":
        return "MLA", layer.self_attention.core_attention.path
    return {"dsa": "DSA", "moe": "MoE"}[kind], config.nam56r_chosen[kind]


def build(size: Size, run: Run, **stage: Any) -> Nam56r:
    """The stage's model on the current device, parameters initialised from Megatron's generators."""
    return Nam56r(size, run, **stage)
