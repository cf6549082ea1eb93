"""What ranks on several hosts must have in common, looked at before the first step."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist

from model.loop.ranks import agreement
from patchlane.base.errors import PatchlaneError

TOKEN = ".shared-"  # and a random name: rank 0's, in the run's folder while the others look for it
PATIENCE_S = 10.0  # network file systems show another host's new file some seconds later


def shared(folder: Path) -> None:
    """Raise PatchlaneError on every rank if one does not see in ``folder`` what rank 0 writes there; all call it.

    Rank 0 gives a checkpoint its name after all ranks wrote their parts of it, so it needs them in one folder.
    """
    names = [uuid.uuid4().hex]
    dist.broadcast_object_list(names)
    token = folder / (TOKEN + names[0])
    try:
        agreement.first(lambda: _write(token))
        agreement.every(lambda: _seen(token))
    finally:
        if dist.get_rank() == 0:
            with contextlib.suppress(OSError):  # where it could not be written either, which is what is told
                token.unlink()


def _write(token: Path) -> None:
    try:
        token.touch()
    except OSError as error:
        raise PatchlaneError(
            f"--out {token.parent}: {error.strerror}", "--out with a directory that can be written"
        ) from error


def _seen(token: Path) -> None:
    ends = time.monotonic() + PATIENCE_S
    while token.name not in {path.name for path in token.parent.glob(TOKEN + "*")}:  # a listing asks the server anew
        if time.monotonic() > ends:
            raise PatchlaneError(
                f"rank {dist.get_rank()} does not see what rank 0 writes to --out: {token.parent} is another folder",
                "--out with one absolute path that all hosts share (docs/multi-node.md)",
            )
        time.sleep(0.1)


def alike(own: Mapping[str, object]) -> None:
    """Raise PatchlaneError on every rank if one's ``own`` differs from rank 0's; all call it with the same names.

    Values are plain ones that pickle and compare by content.
    """
    of_all: list[Mapping[str, object]] = [{}] * dist.get_world_size()
    dist.all_gather_object(of_all, own)
    for rank, theirs in enumerate(of_all):
        for name, value in of_all[0].items():
            if theirs[name] != value:
                raise PatchlaneError(
                    f"rank {rank} was started with another {name} than rank 0",
                    "one command, one commit and one dataset on every host; where GPUs differ, a --path that all can "
                    "take (docs/multi-node.md)",
                )
