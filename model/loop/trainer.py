"""A run from its first step to its last: data in, steps, records, held-out loss, checkpoints, a clean end."""

from __future__ import annotations

import gc
import logging
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from model.data.rows import left_out
from model.data.rows.blend import Blend
from model.data.rows.loader import Batch, Loader
from model.definition import memory, rates
from model.definition.memory import checkpoint_gib
from model.definition.recipes import Recipe
from model.invariants import resumed
from model.invariants import watch as invariants
from model.layers.captured import graphs
from model.loop import refusals, run_record
from model.loop.launch import World
from model.loop.progress import ProgressLine
from model.loop.ranks import agreement, apart, spikes, stopping
from model.loop.ranks.stopping import Stop
from model.loop.saving import checkpoint
from model.loop.taken import Taken
from model.patched import lock
from model.patched.overlay import Overlay
from model.patched.proof import watching
from model.patched.proof.watching import Coverage
from model.profile import memory_snapshot
from model.profile.profiling import Window
from model.profile.work import Share
from model.records import earlier, history, metrics, records
from model.records.metrics import MetricsLog
from model.records.records import Train, Valid
from model.records.sinks import open_sinks
from model.saved import reading
from model.step import waits
from model.step.engine import Engine
from model.step.measured import pace
from model.step.measured.diagnosis import Diagnosis
from model.step.measured.launched import Outcome
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import write_atomic
from reproducers.training import coverage as coverage_record

logger = logging.getLogger("model.loop.trainer")


@dataclass(frozen=True)
class TrainingPlan:
    """A run's settings beside the engine's."""

    recipe: Recipe
    folder: Path
    resume: bool = True
    patches_changed_ok: bool = False
    profile: tuple[int, int] | None = None
    wandb: bool | None = None
    waits: int | None = None  # the step in which the host's waits for the GPU are counted
    invariants: int | None = None  # steps from one check to the next; None for none


class Trainer:
    """One rank of a run; rank 0 alone writes records."""

    def __init__(
        self, plan: TrainingPlan, engine: Engine, data: Blend, overlay: Overlay, place: World, watch: Coverage
    ) -> None:
        self.plan, self.engine, self.overlay, self.place, self.watch = plan, engine, overlay, place, watch
        recipe = plan.recipe
        self.sequence = recipe.sequence or engine.size.sequence
        self.ranks = parallel_state.get_data_parallel_world_size()
        self.step = 0  # launched last
        self.unread: Taken | None = None  # that step, where it is read when the next one is launched
        self.batching = run_record.Batching(recipe.micro_batch, recipe.accumulate, self.ranks, recipe.bf16)
        self.changed: dict[str, tuple[Any, Any]] = {}  # fields that differ from the checkpoint
        self.data, self._tokenizer = data, data.tokenizer
        self.loader = self._loader(data, "train")
        self.held_out = {name: self._loader(held, "valid") for name, held in data.evaluated(self.sequence).items()}
        self.spikes = spikes.Spikes(recipe)
        if recipe.on_spike == "skip":
            engine.refuses = self.spikes.refuses
        self.saver = checkpoint.Saver(self.checkpoints, recipe.keep, engine.run.wait_limit)
        self.slow = pace.Slow()
        self.invariants = invariants.Watch(engine, plan.invariants) if plan.invariants else None
        self.covered = self.over = False  # over: no step follows
        self.passed_over: dict[str, str] = {}  # damaged checkpoints that are newer than the one resumed: why
        self.brought = False  # whether the first weights are those of model.weights import
        self.gpu = torch.cuda.get_device_name() if overlay.device == "cuda" else None

    def _loader(self, data: Blend, split: Any) -> Loader:
        return Loader(
            data,
            split,
            self.sequence,
            self.plan.recipe.micro_batch,
            parallel_state.get_data_parallel_rank(),
            self.ranks,
            self.plan.recipe.seed,
            structure=tuple(self.engine.size.fields) if data.record.fields else (),
            document_multiple=graphs.documents(self.plan.recipe.micro_batch) if self.engine.run.cuda_graphs else 1,
        )

    @property
    def _rows(self) -> int:
        """Rows of a step, of all ranks."""
        ranks: int = self.ranks
        return self.plan.recipe.micro_batch * self.plan.recipe.accumulate * ranks

    @property
    def checkpoints(self) -> Path:
        return self.plan.folder / "checkpoints"

    def progress(self) -> dict[str, Any]:
        """A checkpoint's content beside tensors, equal on every rank."""
        return {
            "step": self.step,
            "size": self.engine.size.model_dump(mode="json"),
            "loader": self.loader.state_dict(),
            "encoding": self.data.encoding.model_dump(mode="json"),
            **({"tokenizer": self._tokenizer.decode()} if self._tokenizer else {}),
            "patches": lock.as_record(self.overlay),
            "batching": asdict(self.batching),
            "spikes": self.spikes.state_dict(),
            "hyperparameters": self.plan.recipe.hyperparameters(),
            **({"held": resumed.held(self.invariants.view)} if self.invariants else {}),
        }

    def resume(self) -> None:
        """Resume the newest whole checkpoint, if the plan allows; newer damaged ones are set aside.

        Raises PatchlaneError if it is of another size or code, or if all are damaged.
        """
        if not self.plan.resume:
            checkpoint.supersede(self.checkpoints)
        saved, damaged = checkpoint.newest(self.checkpoints)
        if saved is None:
            return
        before = checkpoint.progress(saved)
        if not self.engine.size.same_model(before["size"]):
            refusals.another_model(saved.name)
        if before.get("weights_only"):
            checkpoint.load_weights(self.engine, saved, before.get("drawn", ()))
            self.passed_over, self.brought = checkpoint.set_aside(damaged), True
            return
        lock.compare(before["patches"], self.overlay, self.plan.patches_changed_ok)
        with self.watch.once(coverage_record.RESUMING):
            checkpoint.load(self.engine, saved)
        same = before.get("batching", {}).get("bf16") == self.batching.bf16  # masters of bf16 weights are others
        if self.invariants is not None and same and "held" in before:
            resumed.compare(before["held"], self.invariants.view, saved.name)
        self.passed_over = checkpoint.set_aside(damaged)
        self.step = before["step"]
        self.loader.load_state_dict(before["loader"])
        known = self.spikes.left_out(self.plan.folder, self.step)
        self.loader.left_out = left_out.merged([*self.loader.left_out, *known])
        self.spikes.load_state_dict(before.get("spikes", {}))
        self.changed = self.batching.changes(before.get("batching", {})) | run_record.changes(
            self.plan.recipe.hyperparameters(), before.get("hyperparameters")
        )

    def run(self) -> None:
        """Take all steps that are left. A stop that is asked for ends the run after the step in flight, saved:
        ``stopped`` tells."""
        self.stop = Stop(self.plan.folder, self.place.first)
        held = agreement.first(lambda: metrics.claim(self.plan.folder))  # before anything in it is moved
        self.stop.forget()
        self.resume()
        agreement.first(lambda: earlier.set_aside(self.plan.folder, self.step, self.brought))
        layout = f"micro-batch {self.plan.recipe.micro_batch} x {self.sequence}"
        with memory_snapshot.guard(self.plan.folder, layout, self.place.rank):
            if not self.place.first:
                self._ended(None, None)
                return
            sinks = open_sinks(self.plan.folder, self.step, self.plan.wandb)
            with MetricsLog(self.plan.folder, self.step, sinks, held) as log, self._line() as line:
                self._opening(log)
                self._ended(log, line)

    def _ended(self, log: MetricsLog | None, line: ProgressLine | None) -> None:
        """Take the steps; as one of them fails, the one before is recorded and a checkpoint that is being written is
        finished first."""
        try:
            self._steps(log, line)
        except Exception:
            self._rescue(log, line)
            self.saver.wait()
            raise

    def _line(self) -> ProgressLine:
        return ProgressLine(self.plan.recipe.steps)

    def _opening(self, log: MetricsLog) -> None:
        name = run_record.FILE
        if self.step:
            log.event(self.step, "resumed")
            if (self.plan.folder / name).exists():  # not where a run goes on from another one's checkpoint
                name = f"run.from_{self.step}.json"
        elif self.brought:
            log.event(self.step, "imported weights")
        for damaged, why in self.passed_over.items():
            log.event(self.step, "damaged checkpoint", folder=damaged, why=why)
        self._differences(log)
        statement = run_record.of(
            self.engine.size,
            self.plan.recipe,
            self.engine.run,
            self.place.size,
            self.data,
            self.overlay,
            self.engine.config.model_paths,
        )
        write_atomic(self.plan.folder / name, run_record.text(statement))
        if self.step >= self.plan.recipe.steps:
            logger.info("the run of %d steps had ended; a higher --steps goes on, --fresh starts anew", self.step)
        log.event(self.step, "dataset", digest=self.data.digest, unigram_entropy=self.data.unigram_entropy)
        for dataset in self.data.described() if len(self.data.parts) > 1 else []:
            log.event(self.step, "blended", dataset=dataset.pop("name"), **dataset)
        if self.plan.recipe.optimizer != "adamw":
            log.event(self.step, "optimizer", matrices=self.plan.recipe.optimizer)
        packs = ",".join(applied.pack.id for applied in self.overlay.packs) or "none"
        log.event(self.step, "patches", packs=packs)
        if self.plan.recipe.save_every:
            logger.info(stopping.cost(self._last_save(), checkpoint_gib(self.engine.size, self.plan.recipe.optimizer)))

    def _last_save(self) -> tuple[float, float] | None:
        """(seconds until it had its name, GiB) of the last checkpoint that the run's records tell of."""
        saved = history.named(self.plan.folder, "checkpoint")
        return (float(saved[-1].detail["seconds"] or 0), float(saved[-1].detail["gib"] or 0)) if saved else None

    def _differences(self, log: MetricsLog) -> None:
        """Say, and record as events, what the run does otherwise than before, or than its recipe asks."""
        for what, (before, now) in self.changed.items():
            logger.warning("resumed with another %s: %s, it was %s", what.replace("_", "-"), now, before)
            log.event(self.step, "changed", what=what, before=before, now=now)
        asked, taken = self.plan.recipe.warmup, self.plan.recipe.warmup_taken
        if taken < asked and self.step < self.plan.recipe.steps:
            logger.warning("a warm-up of %d steps does not fit a run of %d: it takes %d", asked, taken + 1, taken)
            log.event(self.step, "warmup_cut", asked=asked, taken=taken)

    def _steps(self, log: MetricsLog | None, line: ProgressLine | None) -> None:
        recipe, window = self.plan.recipe, self._window()
        self.watch.attach(self.engine.model)
        while self.step < recipe.steps and not self._stop_agreed(log):
            number = self.step + 1
            profiled = window is not None and window.traces(number)
            opening = window is not None and window.opens(number)  # the step before one whose idle time is measured
            self.engine.diagnoses.begin(number, profiled=profiled or opening)
            self.engine.counts_waits = number == self.plan.waits
            checked = self.invariants is not None and self.invariants.due(number, self._saves(number))
            alone = profiled or self.engine.counts_waits or checked
            follows = window is not None and window.opens(self.step)
            if (alone and not follows) or opening or checked or self.engine.diagnoses.lacks_seconds:
                self._settle(log, line)
            later = not alone and self._read_later(number)
            if self.invariants is not None and checked:
                self.invariants.begin()
            before = self.unread.launched if self.unread is not None else None
            began = time.perf_counter()
            batches = [next(self.loader) for _ in range(recipe.accumulate)]
            loaded = time.perf_counter() - began
            with refusals.within(number), self._profiled(window), self.watch.step():
                launched = self.engine.launch(batches, loaded)
                self._settle(log, line)
                if not later:
                    outcome = launched.read()
                    if window is not None:
                        since = launched.clock.since(before.clock) if before is not None else None
                        window.took(loaded, outcome.phases, (batch.cu_seqlens.tolist() for batch in batches), since)
            self.step = number
            self.unread = Taken(
                step=number,
                tokens=self.loader.consumed * self.sequence,
                reserved=torch.cuda.memory_reserved() if self.gpu is not None else None,
                began=began,
                loaded=loaded,
                launched=launched,
                before=before,
                later=later,
            )
            if later:
                continue
            spike = self._settle(log, line)
            if spike is not None and recipe.on_spike == spikes.REWIND:
                self._go_back(spike, log)
                continue
            if checked:
                self._check(batches, outcome, log)
            self._after(log, line)
        self.over = True
        self._settle(log, line)
        if self.stopped and log is not None:
            log.event(self.step, "stopped")
        self._saved(log)
        if self.step and recipe.save_every and self.step not in self._steps_saved():
            self._check([], None, log)
            self._save(log)
            self._saved(log)
        if self.stopped:
            logger.info(
                "stopped after step %d of %d, as it was asked; the same command goes on", self.step, recipe.steps
            )
            if self.step in self._steps_saved():
                self.stop.leave(self.step, recipe.steps, reading.name(self.step))

    @property
    def stopped(self) -> bool:
        """Whether the steps have ended, or end now, before the recipe's."""
        return self.step < self.plan.recipe.steps

    def _steps_saved(self) -> list[int]:
        return [reading.step_of(path) for path in reading.complete(self.checkpoints)]

    def _read_later(self, step: int) -> bool:
        """Whether ``step`` is read when the next one is launched: nothing that is due before needs its values, or a
        host in step with the GPU."""
        recipe = self.plan.recipe
        waits_for_nothing = self.engine.run.late_reads and recipe.on_spike == "stop" and self.engine.refuses is None
        return waits_for_nothing and self.covered and not (self._evaluates(step) or self._saves(step))

    def _settle(self, log: MetricsLog | None, line: ProgressLine | None) -> spikes.Spike | None:
        """Read and record the pending step; return the loss spike, if any.

        Raises PatchlaneError for a loss or a norm that ends the run."""
        taken, self.unread = self.unread, None
        if taken is None:
            return None
        outcome = taken.launched.read()
        spike = self.spikes.after(taken.step, outcome.losses["loss"], outcome.grad_norm)
        if self.engine.run.late_reads and spike is None:
            refusals.norm(outcome.grad_norm, taken.step)
        if log is not None and outcome.waits is not None:
            log.event(taken.step, "waits", count=outcome.waits.total(), places=waits.text(outcome.waits))
        if log is not None and line is not None:
            record = self._record(taken, outcome)
            log.write(record)
            line.update(record)
            if outcome.diagnosis is not None:
                self._diagnosed(taken.step, outcome.diagnosis, log)
        if spike is None:
            refusals.loss(outcome.losses["loss"], taken.step)
        elif self.plan.recipe.on_spike != spikes.REWIND and log is not None:
            log.event(taken.step, "skip", **asdict(spike), rows=self._rows)
        return spike

    def _check(self, batches: list[Batch], outcome: Outcome | None, log: MetricsLog | None) -> None:
        """Record what the invariants say after a step, of the state alone without an ``outcome``. Raises
        invariants.Broken."""
        if self.invariants is None:
            return
        told, broken = self.invariants.check(self.step, batches, outcome)
        if log is not None:
            log.event(self.step, "invariants", **told, **({"broken": broken} if broken else {}))
        invariants.refuse(broken)

    def _rescue(self, log: MetricsLog | None, line: ProgressLine | None) -> None:
        """After a failure, record the pending step if the GPU ends it. Raises nothing of its own."""
        try:
            if self.unread is not None and self.unread.ends_soon():
                self._settle(log, line)
        except Exception as error:
            logger.warning("the step before the one that failed: %s", error)

    def _diagnosed(self, step: int, found: Diagnosis, log: MetricsLog) -> None:
        """Write what a step was diagnosed with, and say which rank is slow time after time."""
        record = records.Diagnosis(step=step, **vars(found))
        log.write(record)
        for rank in self.slow.after(record.rank_seconds):
            seconds, median = record.rank_seconds[rank], statistics.median_low(record.rank_seconds)
            logger.warning("rank %d is slow: %.3g s of a step are its own, the median is %.3g s", rank, seconds, median)
            log.event(step, "straggler", rank=rank, seconds=seconds, median=median)

    def _go_back(self, spike: spikes.Spike, log: MetricsLog | None) -> None:
        """To the newest whole checkpoint, without the samples taken since. PatchlaneError where there is none."""
        met, began = self.step, time.perf_counter()
        self._saved(log)
        saved, damaged = checkpoint.newest(self.checkpoints)
        before: dict[str, Any] = checkpoint.progress(saved) if saved is not None else {"weights_only": True}
        if saved is None or before.get("weights_only"):
            raise PatchlaneError(
                f"step {met}: {spike.kind}, and no checkpoint to go back to",
                "the same command with a lower --set save_every=STEPS or learning_rate=RATE",
            )
        checkpoint.set_aside(damaged)
        self.engine.gather()
        checkpoint.load(self.engine, saved)
        first, last = self.loader.leave_out(before["loader"]["consumed"])
        self.step = before["step"]
        self.spikes.load_state_dict(before.get("spikes", {}))
        self.spikes.rewinds += 1
        logger.warning("step %d: %s; back to %s, without %d rows", met, spike.kind, saved.name, last - first)
        if log is not None:
            earlier.set_aside(self.plan.folder, self.step)
            log.back_to(self.step, open_sinks(self.plan.folder, self.step, self.plan.wandb))
            log.event(
                self.step,
                spikes.REWIND,
                **asdict(spike),
                at=met,
                folder=saved.name,
                first_sample=first,
                last_sample=last,
                rows=last - first,
                seconds=time.perf_counter() - began,
            )

    def _window(self) -> Window | None:
        if not self.plan.profile:
            return None
        gather = self._gathered if self.place.size > 1 else None
        return Window(*self.plan.profile, self.plan.folder, gather=gather, writes=self.place.first, share=self._share())

    def _share(self) -> Share | None:
        """What this rank computes; None in fp32, whose products have other ceilings."""
        recipe = self.plan.recipe
        if not self.engine.run.bf16:
            return None
        layout = memory.Layout(
            data=self.ranks,
            expert=recipe.expert_parallel,
            pipeline=recipe.pipeline_parallel,
            micro_batch=recipe.micro_batch,
        )
        stage = parallel_state.get_pipeline_model_parallel_rank()
        return Share(self.engine.size, layout, stage, self.engine.run.recompute)

    def _gathered(self, own: Any) -> list[Any]:
        """Every rank's ``own``, in rank order."""
        every: list[Any] = [None] * self.place.size
        dist.all_gather_object(every, own)
        return every

    def _profiled(self, window: Window | None) -> AbstractContextManager[None]:
        return window.step(self.step + 1) if window else nullcontext()

    def _after(self, log: MetricsLog | None, line: ProgressLine | None) -> None:
        """Do what is due after a step: coverage once, checkpoints and held-out loss at their intervals.

        The checkpoint comes first: what ends an evaluation, of which it is independent, then costs no step.
        """
        self._coverage(log)
        if self._saves(self.step):
            self._save(log)
        if self._evaluates(self.step):
            self._evaluate(log, line)

    def _evaluates(self, step: int) -> bool:
        return step % self.plan.recipe.evaluate_every == 0 or step == self.plan.recipe.steps

    def _saves(self, step: int) -> bool:
        """Whether ``step`` is at the interval, or the last one."""
        every = self.plan.recipe.save_every
        return every > 0 and (step % every == 0 or step == self.plan.recipe.steps)

    def _stop_agreed(self, log: MetricsLog | None) -> bool:
        """Whether any rank was asked to stop. A checkpoint that has its name by now is recorded."""
        asked, writing = self._agreed()
        if not writing:
            self._saved(log)
        return asked

    def _agreed(self) -> tuple[bool, bool]:
        """(whether any rank was asked to stop, whether any writes a checkpoint), on all ranks. Where they stop, or the
        steps are over, they end their checkpoint whatever torchrun kills."""
        asked, writing = agreement.anywhere(self.stop.asked(), self.saver.busy)
        self.saver.outlives = asked or self.over
        if self.saver.outlives:
            apart.outlive()
        else:
            apart.bind()
        return asked, writing

    def _evaluate(self, log: MetricsLog | None, line: ProgressLine | None) -> None:
        """Held-out loss of each set over the same rows each time, in every layout."""
        for name, loader in self.held_out.items():
            began = time.perf_counter()
            with self.watch.once(coverage_record.EVALUATING):
                found = self.engine.evaluate(loader.first(self.plan.recipe.evaluate_rows), lambda: self._agreed()[0])
            self._coverage(log)
            if found is None:
                return
            loss, tokens = found
            if log is not None and line is not None:
                seconds = time.perf_counter() - began
                record = Valid(step=self.step, name=name, tokens=tokens, loss=loss, seconds=seconds)
                log.write(record)
                line.valid(record)

    def _save(self, log: MetricsLog | None) -> None:
        """Begin a checkpoint, which is written beside the steps that follow."""
        self._saved(log)
        apart.outlive()
        with self.watch.once(coverage_record.SAVING):
            self.saver.begin(self.engine, self.step, self.progress())
        self._coverage(log)

    def _saved(self, log: MetricsLog | None) -> None:
        """Wait until a checkpoint that was begun has its name, and record it. Raises PatchlaneError where it cannot."""
        if not self.saver.pending:
            return
        while self._agreed()[1]:
            time.sleep(0.05)
        saved = self.saver.finish()
        if log is not None:
            log.event(
                saved.step,
                "checkpoint",
                folder=saved.path.name,
                seconds=saved.seconds,
                blocked=saved.blocked,
                written=saved.written,
                gib=checkpoint.gib(saved.path),
            )

    def _coverage(self, log: MetricsLog | None) -> None:
        """Record what was watched once steps or a checkpoint are over; stop the run if a patch that the model needs
        executed on no rank."""
        if not (self.watch.watched and self.watch.news):
            return
        first, self.covered = not self.covered, True
        if first:
            gc.collect()
            gc.freeze()  # later collections skip lasting objects: while one rank collects, all wait for it
        record = coverage_record.merged(self._gathered(self.watch.record()))
        if log is not None:
            record.write(self.plan.folder)
        if log is not None and first:
            log.event(self.step, "coverage", seconds=sum(self.watch.seconds_watched) + self.watch.seconds_building)
        watching.require(record, self.overlay, self.overlay.device)

    def _record(self, taken: Taken, outcome: Outcome) -> Train:
        tokens, total = self._rows * self.sequence, taken.seconds()
        losses = outcome.losses
        return Train(
            step=taken.step,
            tokens=taken.tokens,
            loss=losses["loss"],
            mtp_loss=losses["mtp_loss"],
            aux_loss=losses["aux_loss"],
            indexer_loss=losses["indexer_loss"],
            grad_norm=outcome.grad_norm,
            learning_rate=outcome.learning_rate,
            skipped=outcome.skipped,
            expert_load=outcome.load.expert,
            rank_load=outcome.load.rank,
            peak_gib=max(outcome.peaks_gib, default=None),
            peaks_gib=outcome.peaks_gib or None,
            reserved_gib=None if taken.reserved is None else taken.reserved / memory.GIB,
            **vars(rates.rates(self.engine.size, tokens, total, self.place.size, self.gpu, self.sequence)),
            seconds=taken.phases(outcome, total),
        )
