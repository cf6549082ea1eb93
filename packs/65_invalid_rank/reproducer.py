# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""Megatron's safe_get_rank takes a RANK or SLURM_PROCID that is no number for rank 0, without a word.

Before ``torch.distributed`` is started the rank is that of the environment. Both functions of the name, of
``megatron.core`` and of Megatron-FSDP, catch what ``int`` raises and return 0, so that under a launcher that sets RANK
wrong each process takes itself for the first: all write its logs and files. A refusal is right, and so is a warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st

from reproducers import probe


def minimal() -> None:
    """A launcher's slip of the pen."""
    import os
    import warnings

    from megatron.core._rank_utils import safe_get_rank

    os.environ["RANK"] = "three"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            print("rank", safe_get_rank(), [str(one.message) for one in said])
        except ValueError as error:
            return print("refused:", error)
    assert said


CORE, FSDP = "megatron.core._rank_utils", "megatron.core.distributed.fsdp.src.megatron_fsdp.utils"
WRONG = ("three", "", " ", "1.0", "0x1", "None", "1 2", "-", "${RANK}", "0,1", "1e0", "rank0")
REFUSED = (ValueError, TypeError, RuntimeError)
NAMES = ("RANK", "SLURM_PROCID", "SLURM_NTASKS", "WORLD_SIZE")


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Of a launcher's names those alone; as it was afterwards."""
    before = {name: os.environ.get(name) for name in NAMES}
    for name in NAMES:
        os.environ.pop(name, None)
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def told(call: Callable[[], Any], **values: str) -> tuple[Any, list[str]]:
    """What ``call`` returns, or None where it refuses, and what it says by warnings, the log or its refusal."""
    heard, root, got = Heard(), logging.getLogger(), None
    root.addHandler(heard)
    try:
        with environment(**values), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                got = call()
            except REFUSED as error:
                heard.said.append(str(error))
            after = {name: os.environ.get(name) for name in NAMES}
    finally:
        root.removeHandler(heard)
    assert after == {name: values.get(name) for name in NAMES}, "the environment is the launcher's"
    return got, [*heard.said, *(str(one.message) for one in warned)]


def silent(call: Callable[[], Any], name: str, value: str, **more: str) -> int:
    """0 where something is said of the name or its value and the rank is none or 0, 1 where nothing is, else 2."""
    got, said = told(call, **{name: value}, **more)
    if got not in (None, 0):
        return 2
    return 0 if any(name in one or (value.strip() and value in one) or "invalid literal" in one for one in said) else 1


def check_wrong(p: probe.Probe) -> None:
    """Values that are no numbers, of each function and of the log that asks it."""
    for where in (CORE, FSDP):
        module, short = p.upstream(where), "core" if where == CORE else "FSDP"
        logger = logging.getLogger("patchlane.rank")
        logger.setLevel(logging.INFO)  # main asks for no rank where nothing would be written
        for name, call in (
            ("safe_get_rank", module.safe_get_rank),
            ("log_single_rank", partial(module.log_single_rank, logger, logging.INFO, "hello")),
        ):
            worst = [silent(call, "RANK", value) for value in WRONG]
            p.error(
                f"{short}: {name}: RANK: nothing is said",
                sum(one == 1 for one in worst),
                0,
                reference="a refusal or a warning",
                bug_above=1,
            )
            p.guard(f"{short}: {name}: RANK: another rank", sum(one == 2 for one in worst), 0, reference="none or 0")
    call = p.upstream(CORE).safe_get_rank
    both = [silent(call, "RANK", value, SLURM_NTASKS="4", SLURM_PROCID="2") for value in WRONG]
    # a rank of SLURM beside a RANK that is wrong would be a guess
    p.error(
        "core: RANK beside SLURM's: nothing is said", sum(one != 0 for one in both), 0, reference="said", bug_above=1
    )
    slurm = [silent(call, "SLURM_PROCID", value, SLURM_NTASKS="4") for value in WRONG]
    p.error("core: SLURM_PROCID: nothing is said", sum(one != 0 for one in slurm), 0, reference="said", bug_above=1)


def check_drawn(p: probe.Probe) -> None:
    """Values that nobody foresees: numbers are ranks, all else is told."""

    def wrong(where: str, value: str) -> int:
        call = p.upstream(where).safe_get_rank
        try:
            rank = int(value)
        except ValueError:
            return silent(call, "RANK", value)
        got, said = told(call, RANK=value)
        return int(got != rank or bool(said))

    letters = st.text(st.sampled_from("0123456789 -.xeN_"), min_size=0, max_size=5)
    p.drawn(
        "drawn: values that are not as they should be",
        wrong,
        0,
        space={"where": st.sampled_from([CORE, FSDP]), "value": letters},
        count=20,
        reference="a rank, or a refusal or a warning",
        bug_above=1,
    )


def check_neighbours(p: probe.Probe) -> None:
    """Ranks that are right, in both functions; what is said where there is none."""
    core, fsdp = p.upstream(CORE), p.upstream(FSDP)
    wrong = 0
    for call in (core.safe_get_rank, fsdp.safe_get_rank):
        for value in ("0", "3", " 5 ", "007", "123456", "-1", "1_0"):
            got, said = told(call, RANK=value)
            wrong += got != int(value) or type(got) is not int or bool(said)
        wrong += told(call, RANK="3", SLURM_NTASKS="8", SLURM_PROCID="6") != (3, [])
        wrong += told(call, RANK="3", SLURM_NTASKS="8", SLURM_PROCID="six") != (3, [])
    p.guard("ranks of RANK that are wrong", wrong, 0, reference="the number, and nothing is said")
    p.guard("SLURM's rank", told(core.safe_get_rank, SLURM_NTASKS="8", SLURM_PROCID="6") != (6, []), 0, reference="6")
    alone, said = told(core.safe_get_rank, SLURM_PROCID="six")  # SLURM's only with a number of tasks
    p.guard("no rank: core", alone != 0 or len(said) != 1, 0, reference="0, with one warning")
    alone, said = told(core.safe_get_rank)
    p.guard("nothing at all: core", alone != 0 or len(said) != 1, 0, reference="0, with one warning")
    p.guard("nothing at all: FSDP", told(fsdp.safe_get_rank) != (0, []), 0, reference="0")
    sizes = [told(core.safe_get_world_size, WORLD_SIZE="4"), told(core.safe_get_world_size, SLURM_NTASKS="4")]
    p.guard("sizes of worlds", sizes != [(4, []), (4, [])], 0, reference="4")
    logs = 0
    for module in (core, fsdp):
        for value, rank, want in (("0", 0, 1), ("2", 0, 0), ("2", 2, 1)):
            logger, heard = logging.getLogger("patchlane.single"), Heard()
            logger.addHandler(heard)
            told(partial(module.log_single_rank, logger, logging.WARNING, "hello %s", "you", rank=rank), RANK=value)
            logger.removeHandler(heard)
            logs += heard.said != ["hello you"] * want
    p.guard("records of one rank", logs, 0, reference="on that rank alone")


def check_started(p: probe.Probe) -> None:
    """Once ``torch.distributed`` is started the environment is not asked, whatever it holds."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        asked = [
            told(p.upstream(where).safe_get_rank, RANK=value) for where in (CORE, FSDP) for value in ("three", "7")
        ]
    finally:
        torch.distributed.destroy_process_group()
    p.guard("ranks after the start", sum(one != (0, []) for one in asked), 0, reference="that of torch.distributed")


def reproduce(p: probe.Probe) -> None:
    check_wrong(p)
    check_drawn(p)
    check_neighbours(p)
    check_started(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=65, package="megatron", minimal=minimal)
