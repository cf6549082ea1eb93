"""What an earlier start left in a run's folder and nothing of this one is: results, drawings, records of its setup.

Checkpoints and metrics have homes of their own, ``checkpoints.N`` and ``metrics.superseded.jsonl``.
"""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path

logger = logging.getLogger("model.records.earlier")
FOLDER = "earlier"  # earlier.1, earlier.2 and so on
OF_A_START = (
    "tensorboard",
    "evaluation",
    "run.json",
    "run.from_*.json",
    "coverage.json",
    "*.png",
    "profile.md",
    "profile.json",
    "trace*.json.gz",
    "oom.rank*",
    "nccl_trace_rank_*",
)
OF_A_STEP = {"evaluation/step_*.json": r"step_(\d+)\.", "run.from_*.json": r"run\.from_(\d+)\."}


def set_aside(folder: Path, step: int, brought: bool = False) -> Path | None:
    """Before a start that goes on after ``step``, on rank 0: move what is of later steps, of one that starts at 0 all.

    ``brought``: its first weights are a checkpoint of step 0, of which there may be results. Returns where it is now.
    """
    if step or brought:
        found = [
            path
            for names, number in OF_A_STEP.items()
            for path in folder.glob(names)
            if (at := re.match(number, path.name)) and int(at[1]) > step
        ]
    else:
        found = [path for names in OF_A_START for path in folder.glob(names)]
    if not found:
        return None
    aside = next(path for n in itertools.count(1) if not (path := folder / f"{FOLDER}.{n}").exists())
    for path in found:
        to = aside / path.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
    logger.info("what is of the run that was here before moved to %s", aside)
    return aside
