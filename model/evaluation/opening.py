"""A checkpoint as the network that was trained, on this process alone, with how its text became tokens."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from model.data.source.tokenizers import Tokenizer
from model.data.stored import dataset
from model.data.stored.encoding import Encoding
from model.families.nam56r import Size
from model.kinds import catalogue
from model.kinds.path import Choice
from model.kinds.run import Run
from model.loop import launch, run_record, session
from model.patched import lock, overlay, seams
from model.patched.stacks import Stack
from model.saved import opened as saved
from model.saved import reading
from patchlane.base.errors import PatchlaneError
from reproducers.upstream.store import Store


@dataclass(frozen=True)
class Opened:
    """``network``: in evaluation mode, Nam56r or Megatron's wrapper that makes it bf16.

    ``sequence``: tokens of a row in training. ``step``: updates.
    """

    path: Path
    network: Any
    size: Size
    sequence: int
    step: int
    encoding: Encoding
    tokenizer: Tokenizer

    def logits(self, tokens: Tensor, positions: Tensor, cu_seqlens: Tensor, fields: dict[str, Tensor]) -> Tensor:
        """tokens, positions, each of fields int64 [T], cu_seqlens int32 [D+1], on the host -> [T, vocab]."""
        import torch

        from model.layers.common.packed import packed

        device = torch.cuda.current_device()
        # the longest that training names, for Megatron keeps one rotary table a length
        documents = packed(cu_seqlens.to(device), self.sequence + 1)
        given = {name: column.to(device) for name, column in fields.items()} or None
        found: Tensor = self.network(tokens[None].to(device), positions[None].to(device), documents, fields=given)[0]
        return found


def opened(
    source: Path, of: Stack, clone: Path | None = None, data: Path | None = None, tokenizer: Path | None = None
) -> Opened:
    """The checkpoint ``source``, or the newest of the run ``source``.

    Call once per process: Megatron's groups cannot be created twice.
    In bf16 on a GPU, in fp32 on a CPU. ``data``: a dataset that it was trained on, for one that does not say how its
    text became tokens. ``tokenizer``: the file of a tokenizer that is not bytes. Raises PatchlaneError where there is
    no checkpoint, where it is damaged, with several ranks, and for another tokenizer.
    """
    place = launch.world()
    if place.size > 1:
        raise PatchlaneError(f"{place.size} ranks: a checkpoint is evaluated by one", "python -m model.evaluate")
    session.quiet(place)
    logging.getLogger("model").setLevel(logging.WARNING)  # not each layer's path
    path = reading.whole(source)
    said = reading.progress(path)
    size, known = saved.described(path, said)
    record, loader = dataset.read_record(data) if data else None, said.get("loader", {})
    encoding = saved.encoding(path, size, known, loader.get("dataset"), record)
    kept = reading.tokenizer(said) or (dataset.tokenizer(data) if data else None)
    text = encoding.open(tokenizer, kept)
    sequence = loader.get("sequence_length", size.sequence)
    cpu = launch.device() == "cpu"
    run = Run(bf16=not cpu, on_cpu=cpu, hopper=launch.hopper(), row=sequence, paths=of.paths)
    catalogue.choose(size, run)  # what cannot run here is refused before upstream's code is fetched
    stack = overlay.build(Store(), overlay.chosen("all", True, of), launch.device(), of, clone)
    lock.verify(stack)
    if "patches" in said:
        lock.compare(said["patches"], stack, True)
    roots = [stack.root(name) for name in stack.trees]
    chosen = catalogue.choose(size, run, seams.lacking(roots))
    seams.check(catalogue.seams(run_record.choices(chosen, run)), roots)
    launch.start(place, stack, run, seed=1234)
    return Opened(path, _network(path, size, run, chosen), size, sequence, said["step"], encoding, text)


def _network(path: Path, size: Size, run: Run, chosen: dict[str, Choice]) -> Any:
    """The network with the checkpoint's weights, and nothing of its optimizer."""
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.transformer.module import Float16Module

    from model.loop.saving import sharded
    from model.step.network import Nam56r

    inner = Nam56r(size, run, chosen).to(torch.cuda.current_device())
    network = Float16Module(inner.config, inner) if run.bf16 else inner
    with reading.staying(path):
        loaded = dist_checkpointing.load({"model": sharded.weights(inner)}, str(path))
    inner.load_state_dict(loaded["model"], strict=False)  # all but the states that are no tensors
    return network.eval()
