"""Megatron's training machinery around a model: precision wrapper, data parallelism, optimizer, schedule, one step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import (
    OptimizerConfig,
    ParamKey,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from model.data.rows.loader import Batch
from model.definition.recipes import Recipe
from model.families.family import Family
from model.kinds.path import Choice, called
from model.kinds.run import Run
from model.layers.captured import graphs
from model.layers.common.packed import packed
from model.step import losses as parts
from model.step import muon, overlap, waits
from model.step.clock import Clock
from model.step.measured import balance, peaks
from model.step.measured.diagnosis import Diagnoses
from model.step.measured.launched import Launched, Outcome
from model.step.network import Network

SPARED = "_no_weight_decay"  # the attribute of a parameter that is not decayed
Shape = tuple[int, ...]
IN_FLIGHT = 4  # micro-batches of an evaluation for each pipeline stage, between which a stop is heard


class Engine:
    """One rank's stage with its optimizer. Build after ``launch.start``, once: Megatron's trackers are global."""

    def __init__(self, size: Family, run: Run, recipe: Recipe, chosen: dict[str, Choice]) -> None:
        self.size, self.run, self.recipe = size, run, recipe
        # A bound that no document reaches, always the same: Megatron keeps one rotary table a length, and takes a table
        # as long as the whole stream for positions that do not restart with each document.
        self.longest = (recipe.sequence or size.sequence) + 1
        first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
        inner = called(size.network)(size, run, chosen, pre_process=first, post_process=last)
        inner = inner.to(torch.cuda.current_device())
        self.config = inner.config
        wrapped = Float16Module(self.config, inner) if run.bf16 else inner
        self.inner: Network = inner
        self.model = DistributedDataParallel(self.config, overlap.config(run, check=recipe.on_spike == "stop"), wrapped)
        self.model.broadcast_params()
        overlap.wait_for_all(self.model)
        self.refuses: Callable[[float, float], bool] | None = None  # of loss and norm: no update is made
        self.counts_waits = False  # of each step, between its data and what is read of it
        adamw = _adamw(recipe, run)
        if recipe.optimizer == "muon":
            muon.mark(inner, size.matrices)
        self.optimizer = get_megatron_optimizer(adamw, [self.model], _overrides(adamw))
        if recipe.optimizer == "muon":
            muon.beside_adamw(self.optimizer, recipe)
        self.schedule = _schedule(self.optimizer, recipe)
        self.diagnoses = Diagnoses(
            size, inner, self.optimizer, recipe.clip, recipe.diagnose_every, logits=not run.cuda_graphs
        )
        self._clock: Clock | None = None
        self.routed = balance.routed(inner)  # of the last step, tokens of all data-parallel ranks [MoE layers, experts]
        self.config.finalize_model_grads_func = self._finalize
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.config.no_sync_func = self.model.no_sync

    def _shares(self, batches: list[Batch]) -> tuple[list[tuple[Batch, Tensor]], Tensor]:
        """Each micro-batch with its shares of the losses; the tokens [1 + MTP depths] that count, of all ranks."""
        counts, device = parts.counts(batches, self.size.mtp_depths), torch.cuda.current_device()
        counts = counts.pin_memory().to(device, non_blocking=True) if self.run.late_reads else counts.to(device)
        shares, tokens = parts.shares(counts)
        return list(zip(batches, shares, strict=True)), tokens

    def _pass(self, shared: list[tuple[Batch, Tensor]], forward_only: bool) -> list[dict[str, Tensor]]:
        """Megatron's schedule over micro-batches of this rank; per-micro-batch losses on the last stage."""
        self._mark()
        # its schedule without stages refuses to be given it
        wire = {} if self.run.pipeline_parallel == 1 else {"adjust_tensor_shapes_fn": self._wire}
        losses: list[dict[str, Tensor]] = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=iter(shared),
            model=[self.model],
            num_microbatches=len(shared),
            seq_length=len(shared[0][0].tokens),
            micro_batch_size=1,
            forward_only=forward_only,
            **wire,
        )
        return losses

    def _wire(self, received: list[Shape], sent: list[Shape]) -> tuple[list[Shape], list[Shape]]:
        """The shapes that travel between stages: [T, 1, channels of the residual] for Megatron's [T, 1, hidden]."""
        wide = [[(*shape[:-1], self.size.residual) for shape in shapes] for shapes in (received, sent)]
        return wide[0], wide[1]

    def _forward(self, batches: Iterator[tuple[Batch, Tensor]], model: Any) -> tuple[Tensor, Any]:
        """Megatron's forward_step_func over one micro-batch and its shares of the losses."""
        (batch, shares), device = next(batches), torch.cuda.current_device()
        batch = batch.pin_memory().to(device, non_blocking=True) if self.run.late_reads else batch.to(device)
        names, columns = self.size.fields, batch.structure
        fields = None if columns is None else {name: columns[:, at] for at, name in enumerate(names)}
        several = len(batch.cu_seqlens) - 1 > graphs.documents(self.recipe.micro_batch)
        with graphs.paused(several):
            output = model(
                batch.tokens[None],
                batch.positions[None],
                packed(batch.cu_seqlens, self.longest),
                labels=batch.labels[None],
                loss_mask=batch.loss_mask[None],
                fields=fields,
                shares=shares,
            )
        return output, partial(_masked_mean, batch.loss_mask)

    def _finalize(self, *args: Any, **kwargs: Any) -> None:
        """Megatron's, which sets the routers' counts back: they are read before."""
        self._mark()
        self.routed = balance.routed(self.inner)
        finalize_model_grads(*args, **kwargs)

    def _mark(self) -> None:
        """Mark the time in a step, none in an evaluation."""
        if self._clock is not None:
            self._clock.mark()

    def step(self, batches: list[Batch]) -> Outcome:
        """One optimizer step over this rank's micro-batches, read at once."""
        return self.launch(batches).read()

    def launch(self, batches: list[Batch], data_seconds: float = 0.0) -> Launched:
        """One optimizer step over this rank's micro-batches. Losses are means over all ranks' tokens that count.

        They come last: the optimizer takes milliseconds to look its parameters over while the GPU has work. With
        ``late_reads`` nothing is read before; a step whose gradients are not finite has been taken by then, and so may
        be the one after it. ``data_seconds``: what this rank's host took for the batches.
        """
        clock = self._clock = Clock()
        with waits.counted() if self.counts_waits else contextlib.nullcontext() as waited:
            clock.mark()
            biases = [bias.clone() for bias in balance.biases(self.inner)] if self.refuses else []
            self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
            micro_losses = self._pass(self._shares(batches)[0], forward_only=False)
            clock.mark()
            self.schedule.step(increment=1)  # before the update: the first one's rate is not zero
            updated, grad_norm = self._update(micro_losses, biases)
            learning_rate = self.optimizer.param_groups[0]["lr"]
            clock.mark()
            measured = [parts.mean(micro_losses), parts.auxiliary(self.config, len(batches))]
            measured += [balance.sums(self.routed, self.run.expert_parallel), peaks.gathered()]
            diagnosed = [self.diagnoses.measured(self.routed)] if self.diagnoses.due else []
            on_device = isinstance(grad_norm, Tensor)
            if on_device:
                measured.append(grad_norm.reshape(1))
            metrics = torch.cat([*measured, *diagnosed]).to("cpu", non_blocking=True)  # from a GPU to pinned memory
            clock.mark()
        self._clock = None
        return Launched(
            clock,
            metrics,
            sum(map(len, diagnosed)),
            None if on_device else grad_norm,
            updated,
            learning_rate,
            data_seconds,
            self.diagnoses,
            waited,
        )

    def _update(self, micro_losses: list[dict[str, Tensor]], biases: list[Tensor]) -> tuple[bool, Any]:
        """Megatron's update: whether it was made, and the norm. ``refuses`` is asked before it, which waits for both.

        Where it refuses, parameters and moments stay, and the routers' biases are ``biases`` again.
        """
        if self.refuses is not None:
            self.optimizer.prepare_grads()
            norm = float(self.optimizer.get_grad_norm())
            if self.refuses(float(parts.mean(micro_losses)), norm):
                for bias, before in zip(balance.biases(self.inner), biases, strict=True):
                    bias.copy_(before)
                return False, norm
        updated, norm, _ = self.optimizer.step()
        return updated, norm

    def gather(self) -> None:
        """Have every weight whole and as the last step left it; all ranks call it before weights are read."""
        overlap.gather(self.model)

    @torch.no_grad()
    def losses_of(self, batch: Batch) -> list[float]:
        """Mean losses in nats over the tokens that count of this rank's ``batch``, the main one, then each MTP depth's;
        empty on stages but the last. All ranks call it between steps; nothing is trained, and routers count nothing."""
        ones = torch.ones(1 + self.size.mtp_depths, device=torch.cuda.current_device())
        try:
            with graphs.paused():
                main = [float(micro_batch["loss"]) for micro_batch in self._pass([(batch, ones)], forward_only=True)]
            return [*main, *parts.by_depth()] if main else []
        finally:
            parts.clear()

    @torch.no_grad()
    def evaluate(self, batches: list[Batch], stopped: Callable[[], bool] = lambda: False) -> tuple[float, int] | None:
        """Held-out loss in nats a token, and the tokens that count, over this rank's micro-batches and all ranks.

        MTP and auxiliaries are left out. ``stopped`` is asked between micro-batches, on all ranks; with pipeline stages
        between a few, which are in flight at once. None where it said so.
        """
        shared, tokens = self._shares(batches)
        at_once = 1 if self.run.pipeline_parallel == 1 else IN_FLIGHT * self.run.pipeline_parallel
        micro_losses: list[dict[str, Tensor]] = []
        self.model.eval()
        try:
            with graphs.paused():
                for first in range(0, len(shared), at_once):
                    if stopped():
                        return None
                    micro_losses += self._pass(shared[first : first + at_once], forward_only=True)
                loss = float(parts.mean(micro_losses))
        finally:
            self.model.train()
            parts.clear()
        return loss, int(tokens[0])


def _adamw(recipe: Recipe, run: Run) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam",
        lr=recipe.learning_rate,
        min_lr=recipe.floor * recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        adam_eps=recipe.epsilon,
        clip_grad=recipe.clip,
        bf16=run.bf16,
        use_distributed_optimizer=True,
        overlap_param_gather=run.overlap_weights,
        params_dtype=torch.bfloat16 if run.bf16 else torch.float32,
    )


def _overrides(adamw: OptimizerConfig) -> dict[ParamKey, dict[str, float]]:
    """Megatron's, which spare parameters of one dimension from decay; it does not read ``SPARED`` of its own accord.

    Matrices for Muon have a group of their own, with AdamW's rate and decay.
    """
    overrides: dict[ParamKey, dict[str, float]] = get_standard_config_overrides(adamw)
    return overrides | {ParamKey(attr=SPARED): {"wd_mult": 0.0}, ParamKey(attr=muon.MARK): {muon.MARK: True}}


def _schedule(optimizer: Any, recipe: Recipe) -> OptimizerParamScheduler:
    """Counted in steps. A resumed run follows its own recipe; by default the checkpoint's would win without a word."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=recipe.learning_rate,
        min_lr=recipe.floor * recipe.learning_rate,
        lr_warmup_steps=recipe.warmup_taken,
        lr_decay_steps=recipe.steps,
        lr_decay_style=recipe.schedule,
        wsd_decay_steps=recipe.decay_steps,
        lr_wsd_decay_style="minus_sqrt",  # as in arXiv 2405.18392
        start_wd=recipe.weight_decay,
        end_wd=recipe.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )


def barrier() -> None:
    """All ranks meet."""
    torch.distributed.barrier()


def _masked_mean(mask: Tensor, losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """mask [T], losses [1, T] -> mean over the micro-batch's tokens that count, and what is reported of it."""
    loss = (losses[0] * mask).sum() / mask.sum().clamp(min=1)
    return loss, {"loss": loss.detach().clone()}  # the schedule scales the loss itself in place
