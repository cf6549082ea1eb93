"""What the children of ``forked`` run: the command line of model.train, watched and disturbed where a test wants it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def cli(
    arguments: list[str],
    stop_after: int | None = None,
    rows: str = "",
    weights: str = "",
    poison: tuple[int, str] | None = None,
    size: dict[str, Any] | None = None,
    largest_file: tuple[int, int] | None = None,
    no_digests: bool = False,
    asleep: tuple[int, int] | None = None,
    bad: tuple[int, str] | None = None,
    left_out: list[tuple[int, int]] | None = None,
    slow: tuple[int, float] | None = None,
    calls: str = "",
    at_once: bool = False,
    as_on_gpu: bool = False,
    stop_in_evaluation: bool = False,
) -> None:
    """``python -m model.train ARGUMENTS``; leaves by SystemExit.

    ``stop_after``: as if SIGTERM came in that step. ``rows``: a file for the digests of each step's rows. ``weights``:
    a file for the digests of parameters, masters and moments at the end. ``poison``: (step, "weight" or "gradient"; of
    all ranks, "gradient of rank 1", "bias of rank 1" of a router, or "failure" for a step that raises).
    ``size``: what to change of the tiny size's definition. ``largest_file``: (rank, bytes that a file of it may have).
    ``no_digests``: the disk is full when a checkpoint's digests are written, on rank 0. ``asleep``: (step, rank that
    never takes it). ``bad``: the rows that this step took first make it "nan" or a "spike" of the loss, or a "gradient"
    of rank 1 that is NaN, whenever they are taken. ``left_out``: spans of samples that the run never takes.
    ``slow``: (rank, seconds that each of its forward passes takes longer). ``calls``: a file for each step's
    "launched", with the time of its last mark, and "read". ``at_once``: each step is read before the next is launched.
    ``stop_in_evaluation``: the first held-out micro-batch asks for a stop.
    ``as_on_gpu``: a profile takes the two steps before its window as it does on a GPU, but traces no kernels.
    """
    from model import train
    from model.families.sizes import SIZES
    from model.loop import trainer
    from reproducers.base.cli import guarded

    SIZES["nam56r_tiny"] = SIZES["nam56r_tiny"].model_copy(update=size or {})

    if largest_file and largest_file[0] == int(os.environ.get("RANK", "0")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file[1], largest_file[1]))
    if no_digests:
        _fill_disk()
    if as_on_gpu:
        _window_of_a_gpu(Path(calls))

    class Watched(trainer.Trainer):
        def _stop_agreed(self, log: Any) -> bool:
            return self.step == stop_after or super()._stop_agreed(log)

        def _read_later(self, step: int) -> bool:
            return not at_once and super()._read_later(step)

        def _steps(self, log: Any, line: Any) -> None:
            taken = self.engine.launch
            if slow and slow[0] == self.place.rank:
                forward = self.engine._forward
                self.engine._forward = lambda *given: time.sleep(slow[1]) or forward(*given)
            if stop_in_evaluation:
                _stop_in_evaluation(self)
            if bad:
                taken = _bad_rows(self, *bad)
            self.loader.left_out += [tuple(span) for span in left_out or []]

            def launch(batches: list[Any], seconds: float) -> Any:
                if poison and poison[0] == self.step + 1:
                    _poison(self.engine, poison[1])
                if asleep and [*asleep] == [self.step + 1, self.place.rank]:
                    time.sleep(3600)
                if rows:
                    _note(Path(rows), self.step + 1, batches)
                launched = taken(batches, seconds)
                return _told(launched, Path(calls), self.step + 1) if calls else launched

            self.engine.launch = launch  # type: ignore[method-assign]
            super()._steps(log, line)
            if weights:
                self.engine.gather()
                _write_digests(self.engine, Path(weights))

    trainer.Trainer = Watched  # type: ignore[misc]
    sys.argv = ["model.train", *arguments]
    guarded(train.app)


def _stop_in_evaluation(run: Any) -> None:
    forward = run.engine._forward

    def stopping(*given: Any) -> Any:
        if not run.engine.model.training:
            (run.plan.folder / "stop").touch()
        return forward(*given)

    run.engine._forward = stopping


def evaluate(arguments: list[str]) -> None:
    """``python -m model.evaluate ARGUMENTS``; leaves by SystemExit."""
    from model import evaluate as verb
    from reproducers.base.cli import guarded

    sys.argv = ["model.evaluate", *arguments]
    guarded(verb.app)


def opened_weights(source: str, data: str = "", tokenizer: str = "", silent: str = "", odd: str = "") -> list[str]:
    """The digests of parameters and buffers of a checkpoint that is opened for evaluation.

    ``silent``: it says nothing of its text's encoding, as those of before did. ``odd``: it says it in another way.
    """
    from model.evaluation import opening
    from model.patched import stacks
    from model.saved import reading

    said = reading.progress
    if silent:
        reading.progress = lambda path: {key: one for key, one in said(path).items() if key != "encoding"}
    if odd:
        reading.progress = lambda path: said(path) | {"encoding": {"unknown": 1}}
    given = [Path(one) if one else None for one in (data, tokenizer)]
    opened = opening.opened(Path(source), stacks.named(), None, *given)
    held = opened.network.state_dict()
    return [f"{name} {_digest(value)}" for name, value in held.items() if hasattr(value, "cpu")]


def likelihoods(source: str, cases: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Of each (context, continuation), by a checkpoint: the adapter's answers, and by hand from the training forward.

    By hand a text is a document of its own, in training mode, and its tokens' losses are added up.
    """
    import torch
    from lm_eval.api.instance import Instance

    from model.evaluation import adapter, opening
    from model.patched import stacks

    opened = opening.opened(Path(source), stacks.named())
    model = adapter.Checkpoint(opened)
    ask = [Instance(request_type="loglikelihood", doc={}, arguments=tuple(case), idx=0) for case in cases]
    roll = [Instance(request_type="loglikelihood_rolling", doc={}, arguments=(whole,), idx=0) for _, whole in cases]
    answers, rolled = model.loglikelihood(ask, disable_tqdm=True), model.loglikelihood_rolling(roll)
    found = []
    for (context, continuation), (total, greedy), rolling in zip(cases, answers, rolled, strict=True):
        kept = context.rstrip()  # the harness counts white space between the two to the continuation
        wanted, likeliest = _by_hand(opened, kept, context[len(kept) :] + continuation)
        after_eod, _ = _by_hand(opened, "", continuation)
        found.append(
            {
                "asked": total,
                "by_hand": wanted,
                "greedy": greedy,
                "likeliest": likeliest,
                "rolling": rolling,
                "after_eod": after_eod,
            }
        )
    assert not opened.network.training and not torch.is_inference_mode_enabled()
    return found


def _by_hand(opened: Any, context: str, continuation: str) -> tuple[float, bool]:
    """(log-likelihood, whether each token is the likeliest) of one text, in a row with zeros for another document."""
    import torch

    from model.data.columns.structure import token_columns
    from model.layers.common.packed import packed

    text = (context + continuation).encode()
    columns = token_columns(text, torch.arange(len(text)).numpy(), opened.encoding.language)
    ids, fields = list(text), {name: columns[name].tolist() for name in opened.size.structure.fields}
    if not context:
        ids, fields = [256, *ids], {name: [0, *values] for name, values in fields.items()}
    size, count = len(ids) - 1, len(continuation.encode())
    rest = [0] * (opened.sequence - size)
    given = {
        "tokens": torch.tensor([ids[:-1] + rest]),
        "positions": torch.cat([torch.arange(size), torch.arange(len(rest))])[None],
        "fields": {name: torch.tensor(values[:-1] + rest) for name, values in fields.items()},
    }
    labels, bounds = torch.tensor([ids[1:] + rest]), torch.tensor([0, size, opened.sequence], dtype=torch.int32)
    those = slice(size - count, size)
    opened.network.train()
    losses = opened.network(
        packed_seq_params=packed(bounds, opened.sequence + 1),
        labels=labels,
        loss_mask=torch.ones(labels.shape),
        **given,
    )[0, those]
    opened.network.eval()
    with torch.no_grad():
        logits = opened.network(packed_seq_params=packed(bounds, opened.sequence + 1), **given)[0, those]
    return -float(losses.double().sum()), bool((logits.argmax(-1) == labels[0, those]).all())


def _fill_disk() -> None:
    from model.saved import writing

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writing.write_digests = full


def on_other_code(arguments: list[str]) -> None:
    """As ``cli``, where the output layer's code is not what the seam was written for."""
    import dataclasses

    from model.kinds import catalogue, ends

    for path in catalogue.PARTS["loss"].paths:
        other = tuple(dataclasses.replace(seam, sha256="0" * 64, also=()) for seam in path.seams if seam == ends.HEAD)
        object.__setattr__(path, "seams", other)
    cli(arguments)


def _note(path: Path, step: int, batches: list[Any]) -> None:
    """One line a row: step and digest of its tokens and labels; appended whole, by all ranks."""
    for batch in batches:
        content = hashlib.sha256(batch.tokens.numpy().tobytes() + batch.labels.numpy().tobytes()).hexdigest()
        with path.open("a") as file:
            file.write(f"{step} {content}\n")


def _window_of_a_gpu(path: Path) -> None:
    """Profiles take steps as on a GPU, and note where they are told how long a step took since the one before."""
    from model.profile.profiling import Window

    took = Window.took

    def noted(self: Any, *given: Any) -> None:
        if given[3] is not None:
            with path.open("a") as file:
                file.write("since before\n")
        took(self, *given)

    planted = {
        "opens": lambda self, number: number == self.first - 2,
        "traces": lambda self, number: self.first - 1 <= number <= self.last,
        "_kernels": lambda self, number: contextlib.nullcontext(),
        "took": noted,
    }
    for name, way in planted.items():
        setattr(Window, name, way)


def _told(launched: Any, path: Path, step: int) -> Any:
    """``launched``, which notes that it is launched and, once, that it is read."""
    read = launched._read

    def noted() -> Any:
        with path.open("a") as file:
            file.write(f"read {step}\n")
        return read()

    launched._read = noted
    with path.open("a") as file:
        file.write(f"launched {step} {launched.clock._times[-1]!r}\n")
    return launched


def _bad_rows(trainer: Any, bad_step: int, what: str) -> Any:
    """The engine's launch, in which the rows that step ``bad_step`` takes first do what ``what`` says."""
    import torch

    from model.step import engine as engines

    taken, mean, bad_rows = trainer.engine.launch, engines._masked_mean, set[bytes]()
    factor = {"now": 1.0}
    weight = next(p for name, p in trainer.engine.inner.named_parameters() if name.endswith("mlp.router.weight"))
    if what == "gradient":
        weight.register_hook(lambda gradient: gradient * factor["now"])
    else:
        engines._masked_mean = lambda mask, losses: mean(mask, losses * factor["now"])
    value = {"nan": torch.nan, "gradient": torch.nan, "spike": 2.0}[what]

    def launch(batches: list[Any], seconds: float) -> Any:
        rows = batches[0].tokens.numpy().tobytes()
        if trainer.step + 1 == bad_step and not bad_rows:
            bad_rows.add(rows)
        mine = what != "gradient" or trainer.place.rank == 1
        factor["now"] = value if rows in bad_rows and mine else 1.0
        return taken(batches, seconds)

    return launch


def _poison(engine: Any, what: str) -> None:
    import torch

    if what == "failure":
        raise RuntimeError("planted")
    parameter = next(p for name, p in engine.inner.named_parameters() if name.endswith("mlp.router.weight"))
    if what == "weight":
        parameter.data.view(-1)[0] = torch.nan
    elif what == "bias of rank 1":
        if torch.distributed.get_rank() == 1:
            next(b for name, b in engine.inner.named_buffers() if name.endswith("router.expert_bias"))[0] += 0.25
    elif what == "gradient" or what == f"gradient of rank {torch.distributed.get_rank()}":
        parameter.register_hook(lambda gradient: gradient * torch.nan)


def _write_digests(engine: Any, path: Path) -> None:
    """The digests of every rank, each of which holds other masters and moments; rank 0 writes."""
    from torch import distributed

    ranks: list[list[str]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(ranks, _digests(engine))
    if distributed.get_rank() == 0:
        path.write_text("\n".join(line for lines in ranks for line in lines))


def _digests(engine: Any) -> list[str]:
    """One line a tensor: parameters, buffers, fp32 masters and moments of this rank."""
    found = [f"{name} {_digest(value)}" for name, value in engine.inner.state_dict().items() if hasattr(value, "cpu")]
    for chained in getattr(engine.optimizer, "chained_optimizers", [engine.optimizer]):
        parameters = [parameter for group in chained.optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):  # in this order, not that of states, which loading changes
            values = {"master": parameter, **dict(sorted(chained.optimizer.state[parameter].items()))}
            found += [f"{number} {name} {_digest(value)}" for name, value in values.items()]
    return found


def _digest(tensor: Any) -> str:
    import torch

    return hashlib.sha256(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _engine(data: str, size: Any, options: dict[str, Any] | None = None, **changed: Any) -> tuple[Any, Any]:
    """An engine in this process and its batches: rows of 64 tokens. ``options`` are Run's, ``changed`` the recipe's."""
    from model.data.rows.loader import Loader
    from model.data.stored.dataset import Dataset
    from model.definition.recipes import Recipe
    from model.kinds import catalogue
    from model.kinds.run import Run
    from model.loop import launch
    from model.step.engine import Engine

    recipe = Recipe(name="", size=size.name, **changed)
    run = Run(bf16=recipe.bf16, **(options or {}))
    launch.start(launch.world(), SimpleNamespace(device="cpu"), run, seed=0)  # type: ignore[arg-type]
    place = launch.world()
    return Engine(size, run, recipe, catalogue.choose(size, run)), Loader(
        Dataset(Path(data)),
        "train",
        64,
        recipe.micro_batch,
        place.rank,
        place.size,
        structure=tuple(size.fields),
    )


def gradients(data: str, micro_batch: int, accumulate: int, to: str = "", routers: float = 0.0) -> dict[str, float]:
    """Losses and gradient norm of the first step of a size with two MTP depths.

    Sparse attention takes every key: of keys with equal scores it would take others in another layout. ``to``: a file
    for {name: gradient}, of a single rank. ``routers``: the weight of the routers' loss.
    """
    import torch

    from model.families.sizes import SIZES

    tiny = SIZES["nam56r_tiny"]
    experts = tiny.experts.model_copy(update={"aux_loss_coeff": routers})
    indexer = tiny.indexer.model_copy(update={"topk": 64})
    size = tiny.model_copy(update={"experts": experts, "indexer": indexer, "mtp_depths": 2})
    engine, batches = _engine(data, size, bf16=False, clip=1e9, micro_batch=micro_batch)
    outcome = engine.step([next(batches) for _ in range(accumulate)])
    if to:
        torch.save({name: p.main_grad.clone() for name, p in engine.inner.named_parameters()}, to)
    return outcome.losses | {"grad_norm": outcome.grad_norm}


def first_weights(data: str, options: dict[str, Any], as_on_gpu: bool = False) -> dict[str, str]:
    """{name: digest} of this rank's parameters before the first step, but for constants.

    ``as_on_gpu``: by the initialisation that Megatron takes on GPUs.
    """
    from model.families.sizes import SIZES
    from model.layers.common import mixer
    from model.step import megatron

    mixer.device = lambda config: None
    whole = megatron.megatron_config

    def config(*given: Any) -> Any:
        found = whole(*given)
        found.use_cpu_initialization = not as_on_gpu
        return found

    megatron.megatron_config = config
    engine, _ = _engine(data, SIZES["nam56r_tiny"], options, bf16=False)
    return {name: _digest(p) for name, p in engine.inner.named_parameters() if len(p.unique()) > 2}


def grouped(engine: Any) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """(name, the optimizer's group, its state) of each parameter."""
    names = {id(p): name for name, p in engine.inner.named_parameters()}
    for chained in getattr(engine.optimizer, "chained_optimizers", [engine.optimizer]):
        inner = chained.optimizer
        for parameter, (group, at) in chained.model_param_group_index_map.items():
            yield names[id(parameter)], inner.param_groups[group], inner.state[inner.param_groups[group]["params"][at]]


def decays(data: str, bf16: bool) -> dict[str, float]:
    """{name: the weight decay that AdamW takes of it}, of nam56r_tiny after a step with a decay of 0.1."""
    from model.families.sizes import SIZES

    engine, batches = _engine(data, SIZES["nam56r_tiny"], weight_decay=0.1, bf16=bf16)
    engine.step([next(batches)])
    return {name: group["weight_decay"] for name, group, _ in grouped(engine)}


def routed(data: str) -> dict[str, tuple[int, bool]]:
    """{name: (dimensions, whether Muon takes it)} of nam56r_tiny by Muon, by the state that a step makes."""
    from model.families.sizes import SIZES

    engine, batches = _engine(data, SIZES["nam56r_tiny"], optimizer="muon", bf16=False)
    engine.step([next(batches)])
    sides = {name: p.ndim for name, p in engine.inner.named_parameters()}
    return {name: (sides[name], {"momentum_buffer", "step"} == state.keys()) for name, _, state in grouped(engine)}


def updates(data: str, options: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Two steps of a small engine by Muon beside torch's own optimizers, which get the same whole gradients.

    The largest difference of Muon's parameters and of AdamW's, over their largest change, and how many matrices more
    than one rank updates a part of.
    """
    import torch
    import torch.distributed as dist

    engine, batches = _engine(data, _small(), options, optimizer="muon", bf16=False, warmup=0, **changed)
    recipe, held = engine.recipe, dict(engine.inner.named_parameters())
    first = {name: p.detach().clone() for name, p in held.items()}
    others = {name: p.clone().requires_grad_() for name, p in first.items()}
    names = {id(p): name for name, p in held.items()}
    taken = {name for name, group, _ in grouped(engine) if group.get("takes_muon")}
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, taken)
    taken = set().union(*every)
    decay = {n: 0.0 if p.ndim == 1 or getattr(held[n], "_no_weight_decay", False) else 0.1 for n, p in others.items()}
    muon = torch.optim.Muon(
        [others[name] for name in sorted(taken)],
        weight_decay=0.1,
        momentum=recipe.muon_momentum,
        ns_steps=recipe.muon_steps,
        adjust_lr_fn="match_rms_adamw",
    )
    groups = [{"params": [others[name]], "weight_decay": decay[name]} for name in others if name not in taken]
    adamw, cut = torch.optim.AdamW(groups, betas=recipe.betas, eps=recipe.epsilon), 0
    for _ in range(2):
        rate = engine.step([next(batches)]).learning_rate
        engine.gather()
        ours = []
        for chained in engine.optimizer.chained_optimizers:
            for p, (group, at) in chained.model_param_group_index_map.items():
                part = chained._get_model_param_range_map(p)["param"]
                ours.append(
                    (names[id(p)], part.start, part.end, chained.optimizer.param_groups[group]["params"][at].grad)
                )
        dist.all_gather_object(every, [(name, a, b, grad.clone()) for name, a, b, grad in ours])
        for pieces in every:
            for name, start, end, grad in pieces:
                if others[name].grad is None:
                    others[name].grad = torch.zeros_like(others[name])
                others[name].grad.view(-1)[start:end] = grad
        found = [name for pieces in every for name, *_ in pieces]
        cut = sum(found.count(name) > 1 for name in taken)
        for optimizer in (muon, adamw):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()

    def off(some: Any) -> float:
        return max(float((held[n] - others[n]).abs().max() / (others[n] - first[n]).abs().max()) for n in some)

    return {"muon": off(taken), "adamw": off(held.keys() - taken), "cut": cut, "matrices": len(taken)}


def other_groups(data: str, folder: str, marked: bool) -> dict[str, Any]:
    """Save if nothing is marked as spared from decay, else load what that saved: by name, group and moments."""
    from model.families.sizes import SIZES
    from model.loop.saving import checkpoint
    from model.saved import reading
    from model.step import engine as engines

    if not marked:
        engines.SPARED = "nothing has this attribute"
    engine, batches = _engine(data, SIZES["nam56r_tiny"], bf16=False)
    if marked:
        checkpoint.load(engine, Path(folder) / reading.name(1))
    else:
        engine.step([next(batches)])
        checkpoint.Saver(Path(folder)).save(engine, 1, {})
    found = {}
    for name, group, state in grouped(engine):
        moments = [_digest(state[moment]) for moment in ("exp_avg", "exp_avg_sq")]
        found[name] = {"decay": group["weight_decay"], "moments": moments, "step": float(state["step"])}
    return found


def _small() -> Any:
    """Two layers, attention and experts, with MTP."""
    from model.families.sizes import SIZES
    from model.kinds.ends import Ngram

    return SIZES["nam56r_tiny"].model_copy(update={"layer_count": 2, "ngram": Ngram(rows=50)})


def started(data: str) -> Any:
    """A small engine after one step."""
    engine, batches = _engine(data, _small(), bf16=False)
    engine.step([next(batches)])
    return engine


def reads(data: str, options: dict[str, Any], diagnosed: bool = False, **changed: Any) -> dict[str, int]:
    """{folder/file: values of tensors that its code read} in the second step of a small engine."""
    from collections import Counter

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: Counter[str] = Counter()

    class Reads(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten._local_scalar_dense.default:
                frame: Any = sys._getframe(1)
                while {"torch", "optim"} & set((reader := Path(frame.f_code.co_filename)).parts) == {"torch"}:
                    frame = frame.f_back  # what wraps this method
                seen["/".join(reader.parts[-2:])] += 1
            return function(*args, **(kwargs or {}))

    engine, batches = _engine(data, _small(), options, bf16=False, **changed)
    engine.step([next(batches)])
    if diagnosed:
        engine.diagnoses.begin(engine.recipe.diagnose_every)
    with Reads():
        engine.step([next(batches)])
    return dict(seen)


def stacks(data: str) -> list[bool]:
    """Whether an engine's experts are multiplied where they lie: weights, then fp32 gradients, of each projection."""
    from model.layers.experts.grouped import GroupedExperts, stacked

    engine, _ = _engine(data, _small(), {"paths": {"moe": "grouped_mm"}}, bf16=True)
    experts = next(module for module in engine.inner.modules() if isinstance(module, GroupedExperts))
    found = []
    for name in ("linear_fc1", "linear_fc2"):
        weights = experts.weights(name)
        for parts in (weights, [weight.main_grad for weight in weights]):
            view = stacked(parts)
            found.append(view is not None and bool((view[1] == parts[1]).all()))
    return found


def _numbers(engine: Any) -> list[Any]:
    """Every trained tensor: the model's parameters, the optimizers' masters and moments."""
    found = list(engine.inner.parameters())
    for chained in getattr(engine.optimizer, "chained_optimizers", [engine.optimizer]):
        for master, state in chained.optimizer.state.items():
            found += [master, state["exp_avg"], state["exp_avg_sq"]]
    return found


def saving(folder: str, data: str, saves: int) -> None:
    """Load the newest checkpoint, then save ``saves`` times: of step s every trained number is s. Says what it does."""
    import torch

    from model.loop.saving import checkpoint
    from model.saved import reading

    engine, at = started(data), 0
    numbers = _numbers(engine)
    found = reading.complete(Path(folder))
    if found:
        checkpoint.verify(found[-1])
        at = checkpoint.progress(found[-1])["step"]
        checkpoint.load(engine, found[-1])
        wrong = [value for value in numbers if not (value == at).all()]
        assert (len(wrong), found[-1].name) == (0, reading.name(at)), f"{len(wrong)} tensors are not of step {at}"
    print(f"loaded {at}", flush=True)
    saver = checkpoint.Saver(Path(folder))
    for step in range(at + 1, at + 1 + saves):
        with torch.no_grad():
            for value in numbers:
                value.fill_(step)
        saver.save(engine, step, {"step": step})
        print(f"saved {step}", flush=True)


def begun(folder: str, data: str, fault: str = "") -> dict[str, Any]:
    """Begin a checkpoint of numbers that are all 1, make them 2, finish it; what loading it gives, and its files.

    ``fault``: "name", what names it fails by no fault of the disk's; "memory", rank 1 has none. What is then said.
    """
    import torch
    import torch.distributed as dist

    from model.loop.saving import checkpoint
    from model.loop.saving import writing as shares
    from model.saved import writing
    from patchlane.base.errors import PatchlaneError

    def fail(*_: Any) -> Any:
        raise ValueError("planted") if fault == "name" else MemoryError

    if fault == "name":
        writing.write_metadata = fail
    if fault == "memory" and os.environ["RANK"] == "1":
        shares.staged = fail
    engine, saver = started(data), checkpoint.Saver(Path(folder))
    numbers = _numbers(engine)
    for value in (1, 2):
        with torch.no_grad():
            for number in numbers:
                number.fill_(value)
        if value == 1:
            try:
                saver.begin(engine, 1, {"step": 1})
            except PatchlaneError as refused:
                return {"refused": refused.what}
            pending = saver.pending
    try:
        saved = saver.finish()
    except PatchlaneError as refused:
        return {"refused": refused.what}
    checkpoint.load(engine, saved.path)
    of_ranks = [sum(f.stat().st_size for f in saved.path.glob(f"__{rank}_*")) for rank in range(dist.get_world_size())]
    return {
        "pending": (pending, saver.pending),
        "step": saved.step,
        "processes": len(multiprocessing.active_children()),
        "bytes": of_ranks,
        "tensors": len(numbers),
        "others": sum(not (number == 1).all() for number in numbers),
    }


def refused(folders: list[str], data: str) -> list[str]:
    """What is said on resuming from each checkpoint, in turn; "" where it is loaded."""
    from model.loop.saving import checkpoint
    from patchlane.base.errors import PatchlaneError

    engine, found = started(data), []
    for path in map(Path, folders):
        try:
            checkpoint.verify(path)
            checkpoint.progress(path)
            checkpoint.load(engine, path)
            found.append("")
        except PatchlaneError as error:
            found.append(str(error))
    return found


def masters(data: str, steps: int) -> dict[str, Any]:
    """After ``steps`` in bf16: of each bf16 parameter (master's dtype, it is its master rounded, its master is finer),
    of each fp32 one whether it is its own master and moved, and the losses."""
    from model.families.sizes import SIZES

    engine, batches = _engine(data, SIZES["nam56r_tiny"], learning_rate=1e-3, warmup=0, steps=10 * steps)
    before = {name: p.detach().clone() for name, p in engine.inner.named_parameters()}
    losses = [engine.step([next(batches)]).losses["loss"] for _ in range(steps)]
    low, high = {}, {}
    names = {id(p): name for name, p in engine.inner.named_parameters()}
    for chained in engine.optimizer.chained_optimizers:
        pairs = zip(chained.model_float16_groups, chained.shard_fp32_from_float16_groups, strict=True)
        for parameter, master in [pair for group in pairs for pair in zip(*group, strict=True)]:
            rounded = master.view(parameter.shape).to(parameter.dtype)
            finer = bool((rounded.float() != master.view(parameter.shape)).any())
            low[names[id(parameter)]] = (str(master.dtype), bool((rounded == parameter).all()), finer)
        pairs = zip(chained.model_fp32_groups, chained.shard_fp32_groups, strict=True)
        for parameter, master in [pair for group in pairs for pair in zip(*group, strict=True)]:
            name = names[id(parameter)]
            moved = bool((parameter != before[name]).any())
            high[name] = moved and master.data_ptr() == parameter.data_ptr() and str(master.dtype) == "torch.float32"
    return {"bf16": low, "fp32": high, "losses": losses}


def settings(data: str, **fields: Any) -> dict[str, Any]:
    """Of an engine by a recipe with ``fields``: AdamW's settings, coefficients of losses, the rate of each step."""
    from model.definition.recipes import Recipe

    size = Recipe(size="nam56r_tiny", **fields).sized()
    engine, _ = _engine(data, size, **fields)
    rates = []
    for _ in range(fields["steps"]):
        engine.schedule.step(increment=1)
        rates.append(engine.optimizer.param_groups[0]["lr"])
    group = engine.optimizer.param_groups[0]
    config, coefficients = engine.config, ("mtp_loss_scaling_factor", "moe_aux_loss_coeff", "dsa_indexer_loss_coeff")
    return {
        "rates": rates,
        "eps": group["eps"],
        "betas": list(group["betas"]),
        "clip": engine.optimizer.config.clip_grad,
        "decays": sorted({group["weight_decay"] for group in engine.optimizer.param_groups}),
        "coefficients": [getattr(config, name) for name in (*coefficients, "moe_router_bias_update_rate")],
    }
