# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "numpy", "packaging", "hypothesis"]
# ///
"""A synchronous distributed checkpoint starts another process, and from a script without a main guard ends in EOFError.

The writer asks for its results queue before anybody knows who will execute the request, and the queue is that of a
``multiprocessing`` manager: an interpreter of its own, started by ``spawn``, which imports the caller's script again.
``TorchDistSaveShardedStrategy.save`` then writes in the calling process, where a plain queue serves. The one queue is
every request's as well, so a synchronous save beside an asynchronous one that waits for its end takes its results.
"""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed.checkpoint
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """Save one tensor; ``python THIS --minimal`` has a main guard, so the process shows and not the EOFError."""
    import multiprocessing
    import tempfile

    import torch
    from megatron.core import dist_checkpointing

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    value = dist_checkpointing.ShardedTensor.from_rank_offsets("x", torch.arange(8.0))
    dist_checkpointing.save({"x": value}, tempfile.mkdtemp())
    print("processes started:", multiprocessing.active_children())
    assert not multiprocessing.active_children()


# What a user runs, whole: nothing in it asks for another process. Without a GPU there is none to wait for.
SCRIPT = """
import sys, torch
from megatron.core import dist_checkpointing
if not torch.cuda.is_available():
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: "cpu")
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
value = dist_checkpointing.ShardedTensor.from_rank_offsets("x", torch.arange(8.0))
dist_checkpointing.save({"x": value}, sys.argv[1])
print("saved")
"""
WAIT = 60  # seconds for a save of a few bytes that fails
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)
State = dict[str, Tensor]


def drawn(seed: int, shapes: tuple[tuple[int, ...], ...]) -> State:
    """Seeded tensors of these shapes, each of another dtype in turn."""
    generator = torch.Generator().manual_seed(seed)
    values = (torch.randint(-99, 99, shape, generator=generator) for shape in shapes)
    return {f"t{at}": value.to(DTYPES[at % len(DTYPES)]) for at, value in enumerate(values)}


class Checkpoints:
    """Upstream's entrances, for the plain tensors of one rank."""

    def __init__(self, p: probe.Probe) -> None:
        self.core = p.upstream("megatron.core.dist_checkpointing")
        self.strategies = p.upstream("megatron.core.dist_checkpointing.strategies.torch")
        self.parallel = p.upstream("megatron.core.dist_checkpointing.strategies.fully_parallel")

    def sharded(self, state: State, replica: int = 0) -> dict[str, Any]:
        make = self.core.ShardedTensor.from_rank_offsets
        return {name: make(name, value, replica_id=replica) for name, value in state.items()}

    def save(self, state: State, folder: str, **options: Any) -> bool:
        """By the calling process. ``options``: of the strategy."""
        self.core.save(self.sharded(state), folder, self.strategies.TorchDistSaveShardedStrategy(**options))
        return True

    def request(self, state: State, folder: str) -> Any:
        """What is left to be done of an asynchronous save."""
        return self.core.save(self.sharded(state), folder, async_sharded_save=True, async_strategy="mcore")

    def wrong(self, state: State, folder: str, replica: int = 0) -> int:
        """Tensors of ``state`` that are not in the checkpoint as they are."""
        template = {name: torch.zeros_like(value) for name, value in state.items()}
        loaded = self.core.load(self.sharded(template, replica), folder)
        return sum(loaded[name].dtype != v.dtype or not torch.equal(loaded[name], v) for name, v in state.items())


def write_elsewhere(request: Any) -> None:
    """Execute a request in a forked process, as Megatron's callers do, and wait for it; it is not finalized."""
    arguments = list(request.async_fn_args)
    arguments[1] = request.preload_fn()
    process = multiprocessing.get_context("fork").Process(target=request.async_fn, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the process that writes ended with {process.exitcode}")


def finalize(calls: list[Callable[[], Any]]) -> bool:
    """RuntimeError where results are missing or another's, for which torch has a BaseException."""
    try:
        for call in calls:
            call()
    except torch.distributed.checkpoint.CheckpointException as error:
        raise RuntimeError(str(error)) from error
    return True


def started(call: Callable[[], Any]) -> int:
    """Processes that ``call`` starts and leaves running."""
    before = {child.pid for child in multiprocessing.active_children()}
    call()
    return len({child.pid for child in multiprocessing.active_children()} - before)


def script_ends_in_eof(folder: Path) -> float:
    """1 where a plain script that saves ends in the EOFError of the process that it starts, 0 where it saves."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    target = folder / "checkpoint"
    target.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, str(script), str(target)], env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode == 0 and ended.stdout.endswith("saved\n") and (target / ".metadata").is_file():
        return 0.0
    if "EOFError" in ended.stderr and "in get_write_results_queue" in ended.stderr:
        return 1.0
    raise RuntimeError(f"the script ended with {ended.returncode}: {ended.stderr[-400:]}")


def check_processes(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> None:
    """What one process saves by itself."""
    p.error(
        "scripts without a main guard that cannot save",
        script_ends_in_eof(Path(folder())),
        0,
        reference="it asks for no process",
        bug_above=1,
    )
    state, first = drawn(p.seed, ((8,), (3, 5))), folder()
    began = time.perf_counter()
    count = started(lambda: checkpoints.save(state, first))
    p.note("seconds of the first save", time.perf_counter() - began)
    p.error("processes that a synchronous save leaves", count, 0, reference="it writes by itself", bug_above=1)
    p.guard("tensors that are loaded wrong", checkpoints.wrong(state, first), 0, reference="as saved")
    again = folder()
    p.guard("processes that a second save starts", started(lambda: checkpoints.save(state, again)), 0, reference="0")
    p.guard(
        "tensors of the second save that are loaded wrong", checkpoints.wrong(state, again), 0, reference="as saved"
    )


def check_drawn(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> None:
    """Shapes, dtypes, numbers of files, one file apart, and structures kept from save to save."""

    def wrong(sizes: tuple[tuple[int, ...], ...], threads: int, apart: bool, kept: bool) -> int:
        state, options = drawn(p.seed, sizes), {"thread_count": threads, "cached_metadata": kept}
        if apart:
            options["separation_hint"] = "t1"
        strategy = checkpoints.strategies.TorchDistSaveShardedStrategy(**options)
        bad = 0
        for time_ in range(2):
            state = {name: value if time_ else value.roll(1) for name, value in state.items()}
            where = folder()
            checkpoints.core.save(checkpoints.sharded(state), where, strategy)
            bad += checkpoints.wrong(state, where)
        return bad

    space = {
        "sizes": st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), min_size=2, max_size=7).map(
            tuple
        ),
        "threads": st.integers(1, 4),
        "apart": st.booleans(),
        "kept": st.booleans(),
    }
    p.drawn("tensors of drawn checkpoints that are loaded wrong", wrong, 0, space=space, count=12, reference="as saved")
    running = len(multiprocessing.active_children())
    p.error("processes that run after drawn saves", running, 0, reference="each writes by itself", bug_above=1)


def check_elsewhere(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> None:
    """Requests that another process executes, alone and with a synchronous save before they are finalized."""
    state, where = drawn(p.seed + 1, ((5,), (2, 2))), folder()
    request = checkpoints.request(state, where)
    write_elsewhere(request)
    p.guard_attempt("a request that another process executed is finalized", partial(finalize, request.finalize_fns))
    p.guard("tensors of it that are loaded wrong", checkpoints.wrong(state, where), 0, reference="as saved")
    itself = folder()
    request = checkpoints.request(state, itself)
    p.guard_attempt("a request that this process executes", partial(executed, request))
    p.guard("tensors of that that are loaded wrong", checkpoints.wrong(state, itself), 0, reference="as saved")

    waiting, other, beside = folder(), drawn(p.seed + 2, ((40, 3), (9,), (7, 2))), folder()
    other = {f"other.{name}": value for name, value in other.items()}
    request = checkpoints.request(state, waiting)
    write_elsewhere(request)
    p.guard_attempt(
        "a synchronous save while a request waits to be finalized", partial(checkpoints.save, other, beside)
    )
    p.guard_attempt("that request is finalized", partial(finalize, request.finalize_fns))
    for name, values, where in (("the synchronous save", other, beside), ("the request", state, waiting)):
        own_index(p, name, checkpoints, values, where)


def executed(request: Any) -> bool:
    request.execute_sync()
    return True


def unreadable(checkpoints: Checkpoints, state: State, folder: str) -> float:
    """1 where a checkpoint's index is not of its files, by which it fails to load or loads wrong; else 0."""
    try:
        return float(checkpoints.wrong(state, folder) > 0)
    except torch.distributed.checkpoint.CheckpointException as error:  # no Exception, but a BaseException
        if any(isinstance(cause, KeyError) for cause, _ in error.failures.values()):
            return 1.0
        raise RuntimeError(f"loading fails otherwise: {error}") from error


def own_index(p: probe.Probe, name: str, checkpoints: Checkpoints, state: State, folder: str) -> None:
    """The checkpoint's index is of its own files, not of another save's."""
    p.error(
        f"{name}: checkpoints whose index is another's",
        unreadable(checkpoints, state, folder),
        0,
        reference="each save has its own results",
        bug_above=1,
    )


def check_own_writer(p: probe.Probe, folder: Callable[[], str]) -> None:
    """A writer that the caller makes, whose request another process executes."""
    saver = p.upstream("megatron.core.dist_checkpointing.strategies.state_dict_saver")
    where = folder()
    writer = p.upstream("megatron.core.dist_checkpointing.strategies.filesystem_async").FileSystemWriterAsync(where)
    planned = saver.save_state_dict_async_plan(drawn(p.seed + 5, ((6,), (2, 3))), writer)[0]
    save, preload, arguments = writer.get_save_function_and_args()
    request = Request(save, tuple(arguments), preload)
    write_elsewhere(request)
    call = partial(finalize, [lambda: saver.save_state_dict_async_finalize(*planned)])
    p.guard_attempt("a writer of the caller's, executed by another process, is finalized", call)
    p.guard("its index is missing", not (Path(where) / ".metadata").is_file(), 0, reference="it is written")


class Request(NamedTuple):
    """What is left to be done of a writer's own save."""

    async_fn: Callable[..., Any]
    async_fn_args: tuple[Any, ...]
    preload_fn: Callable[[], Any]


def check_failure(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> None:
    """A save that cannot write says so, and the next one has results of its own."""
    state, gone = drawn(p.seed + 3, ((4,),)), folder()
    Path(gone).rmdir()
    Path(gone).write_text("a file where the folder was")
    try:
        checkpoints.core.save(checkpoints.sharded(state), gone)
        told = False
    except Exception:
        told = True
    p.guard("a save that cannot write and says nothing", not told, 0, reference="it raises")
    where = folder()
    p.guard_attempt("the save after it", partial(checkpoints.save, state, where))
    p.guard(
        "tensors of the save after it that are loaded wrong", checkpoints.wrong(state, where), 0, reference="as saved"
    )


def check_overlapping(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> None:
    """Saves that begin before another ends, by one strategy, and one that is broken off before its end."""
    first, second = (drawn(p.seed + 7 + at, ((30, 2), (at + 3,))) for at in range(2))
    second = {f"other.{name}": value for name, value in second.items()}
    strategy = checkpoints.strategies.TorchDistSaveShardedStrategy()
    outer, inner, planned = folder(), folder(), folder()
    requests, saver = list[Any](), p.upstream("megatron.core.dist_checkpointing.strategies.state_dict_saver")

    def save(state: State, where: str) -> bool:
        checkpoints.core.save(checkpoints.sharded(state), where, strategy)
        return True

    def within(name: str, call: Callable[[], Any]) -> Any:
        """Has ``call`` made once, in the next call of upstream's function of this name, before that begins."""
        whole, left = getattr(saver, name), [call]

        def instead(*args: Any, **named: Any) -> Any:
            if left:
                left.pop()()
            return whole(*args, **named)

        return mock.patch.object(saver, name, instead)

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: requests.append(checkpoints.request(second, planned)))
        thread.start()
        thread.join()

    with within("save_state_dict_async_finalize", partial(save, second, inner)):
        p.guard_attempt("a save that begins before another's end", partial(save, first, outer))
    for name, state, where in (("the one within", second, inner), ("the one around it", first, outer)):
        own_index(p, name, checkpoints, state, where)
    with within("save_state_dict_async_plan", elsewhere):
        save(first, folder())
    write_elsewhere(requests[0])
    p.guard_attempt("a request of another thread while a save is planned", partial(finalize, requests[0].finalize_fns))

    def broken() -> None:
        raise KeyboardInterrupt

    try:
        with within("save_state_dict_async_finalize", broken):
            save(second, folder())
    except KeyboardInterrupt:
        pass
    after = folder()
    p.guard_attempt("a save after one that was broken off", partial(save, first, after))
    own_index(p, "after one that was broken off", checkpoints, first, after)


def check_strategy(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> None:
    """What a strategy is and does once it has saved, and what it leaves."""
    writers = p.upstream("megatron.core.dist_checkpointing.strategies.filesystem_async").FileSystemWriterAsync
    strategy = checkpoints.strategies.TorchDistSaveShardedStrategy(separation_hint="t1")
    state, where, length = drawn(p.seed + 9, ((4,), (5,))), folder(), 40_961
    state["long"] = torch.full((length,), 3.0)
    with mock.patch.object(writers, "preload_tensors", wraps=writers.preload_tensors) as staged:
        checkpoints.core.save(checkpoints.sharded(state), where, strategy)
    p.guard("a save that brings no tensors to the host", not staged.call_count, 0, reference="the writer's own way")
    apart = [path.name.startswith("t1") for path in Path(where).glob("*.distcp")]
    p.guard("files apart that are missing", not (any(apart) and not all(apart)), 0, reference="separation_hint")
    staged.reset_mock()  # it keeps what it was called with
    del state
    gc.collect()
    size = length * 4
    held = {
        one.untyped_storage().data_ptr()
        for one in gc.get_objects()
        if type(one) is Tensor
        and one.device.type == "cpu"
        and one.untyped_storage().nbytes() >= size
        and one.numel() == length
    }
    p.guard("tensors that a save leaves", len(held), 0, reference="the caller has let go of them")
    p.guard_attempt("the strategy is copied and pickled", lambda: pickle.loads(pickle.dumps(copy.deepcopy(strategy))))
    later, there = drawn(p.seed + 10, ((4,), (5,))), folder()
    request = checkpoints.core.save(
        checkpoints.sharded(later), there, strategy, async_sharded_save=True, async_strategy="mcore"
    )
    write_elsewhere(request)
    p.guard_attempt("a request of a strategy that has saved", partial(finalize, request.finalize_fns))
    p.guard(
        "tensors of it, after a save, that are loaded wrong", checkpoints.wrong(later, there), 0, reference="as saved"
    )


class Asked(Exception):
    """A writer of NVRx's was made."""


def nvrx_writer(
    path: str, *, separation_hint: str | None, thread_count: int, use_msc: bool, use_cached_data_structure: bool
) -> None:
    """In the place of NVRx's, which takes these names and refuses others."""
    raise Asked


def check_other_implementation(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> None:
    """NVRx is asked for what it knows, and a synchronous save does without it."""
    package = "nvidia_resiliency_ext.checkpointing.async_ckpt"
    files = ("core", "cached_metadata_filesystem_reader", "filesystem_async", "state_dict_saver")
    names = [
        "nvidia_resiliency_ext",
        "nvidia_resiliency_ext.checkpointing",
        package,
        *(f"{package}.{f}" for f in files),
    ]
    state, where = drawn(p.seed + 12, ((4,), (2,))), folder()

    def ask() -> bool:
        strategy = checkpoints.strategies.TorchDistSaveShardedStrategy()
        try:
            strategy.async_save(checkpoints.sharded(state), folder(), async_strategy="nvrx")
        except Asked:
            return True
        return False

    with mock.patch.dict(sys.modules, {name: mock.MagicMock(FileSystemWriterAsync=nvrx_writer) for name in names}):
        p.guard_attempt("NVRx's writer is made", ask)
        p.guard_attempt("a synchronous save where NVRx is installed", partial(checkpoints.save, state, where))
    p.guard("tensors of it that are loaded wrong, with NVRx", checkpoints.wrong(state, where), 0, reference="as saved")


def check_nobody(p: probe.Probe, checkpoints: Checkpoints, folder: Callable[[], str]) -> bool:
    """Whether the end of a request whose writing nobody executed raises; where it waits it takes another's results."""
    request, told = checkpoints.request(drawn(p.seed + 11, ((4,),)), folder()), list[str]()

    def end() -> None:
        try:
            finalize(request.finalize_fns)
        except Exception as error:
            told.append(type(error).__name__)

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    ending.join(WAIT)
    p.guard("the end of a request that nobody executed is not told", not told, 0, reference="it raises")
    return bool(told)


def check_ranks(p: probe.Probe) -> None:
    """Two ranks by Megatron's parallel wrapper; and one that has nothing to write."""

    def work(rank: int) -> None:
        p.megatron_cpu()
        checkpoints = Checkpoints(p)
        with tempfile.TemporaryDirectory() as own:
            folders = [own]
            torch.distributed.broadcast_object_list(folders, 0)
            for kind, wrap in (("shared out", True), ("written by one", False)):
                where = Path(folders[0]) / kind.replace(" ", "_")
                where.mkdir(exist_ok=True)
                torch.distributed.barrier()
                state = drawn(p.seed + 4, ((6, 2), (5,), (3, 3)))
                strategy = checkpoints.strategies.TorchDistSaveShardedStrategy()
                if wrap:
                    strategy = checkpoints.parallel.FullyParallelSaveStrategyWrapper(strategy)
                sharded = checkpoints.sharded(state, rank)
                count = started(partial(checkpoints.core.save, sharded, str(where), strategy))
                if wrap:
                    p.error(
                        f"rank {rank} of 2, {kind}: processes that the save leaves",
                        count,
                        0,
                        reference="0",
                        bug_above=1,
                    )
                p.guard(
                    f"rank {rank} of 2, {kind}: tensors that are loaded wrong",
                    checkpoints.wrong(state, str(where), rank),
                    0,
                    reference="as saved",
                )
                torch.distributed.barrier()
            check_failing_rank(p, checkpoints, Path(folders[0]) / "failing", rank)

    p.ranks(2, work)


def check_failing_rank(p: probe.Probe, checkpoints: Checkpoints, where: Path, rank: int) -> None:
    """A file of one rank cannot be written: both are told, and neither waits for the other."""
    strategy = checkpoints.parallel.FullyParallelSaveStrategyWrapper(
        checkpoints.strategies.TorchDistSaveShardedStrategy()
    )
    (where / "__1_0.distcp").mkdir(parents=True, exist_ok=True)  # in the place of rank 1's file
    torch.distributed.barrier()
    sharded, told = checkpoints.sharded(drawn(p.seed + 6, ((6, 2), (5,), (3, 3))), rank), list[str]()

    def save() -> None:
        try:
            checkpoints.core.save(sharded, str(where), strategy)
        except BaseException as error:  # torch's is none of Exception's
            told.append(type(error).__name__)

    saving = threading.Thread(target=save, daemon=True)
    saving.start()
    saving.join(WAIT)
    p.guard(f"rank {rank} of 2: a failed write is not told", told != ["CheckpointException"], 0, reference="on both")


def reproduce(p: probe.Probe) -> None:
    check_ranks(p)
    p.megatron_cpu()
    checkpoints = Checkpoints(p)
    with tempfile.TemporaryDirectory() as root:

        def folder() -> str:
            return tempfile.mkdtemp(dir=root)

        check_processes(p, checkpoints, folder)
        check_drawn(p, checkpoints, folder)
        check_strategy(p, checkpoints, folder)  # first, for upstream's saves find what others left in their queue
        check_elsewhere(p, checkpoints, folder)
        check_own_writer(p, folder)
        check_failure(p, checkpoints, folder)
        check_other_implementation(p, checkpoints, folder)
        if check_nobody(p, checkpoints, folder):
            check_overlapping(p, checkpoints, folder)


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself."""
    p.megatron_cpu()


if __name__ == "__main__":
    probe.main(reproduce, pack=41, package="megatron", minimal=minimal, prepare=prepare)
