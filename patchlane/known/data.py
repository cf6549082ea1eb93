"""The index that an audit takes: the one beside it, another file, or one behind an address that the user gives."""

from __future__ import annotations

import re
import time
from pathlib import Path

from patchlane.base import clock, place
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import LARGEST
from patchlane.known.index import Known, load, parsed, path_in

WHOLE_S = 60.0  # for the whole index, which has less than a megabyte
REMEDY = "leave --data out, which takes the index that came with this patchlane, or get the file whole"


def known(data: str | None = None) -> Known:
    """The index in the file or behind the http address ``data``; None: the one beside the packs.

    Patches are those beside the file where it has them, else those beside this audit. PatchlaneError where it is
    missing, damaged or of another schema; CannotTestHere where the address does not answer in time.
    """
    if data is None:
        return load(path_in())
    if re.match(r"https?://", data):
        return Known(parsed(_fetched(data), data, REMEDY))
    path = Path(data)
    try:
        index = load(path).index
    except PatchlaneError as error:
        raise PatchlaneError(error.what, REMEDY) from error
    beside = any((path.parent / pack.folder).is_dir() for pack in index.packs.values())
    return Known(index, path.parent if beside else place.PACKS)


def _fetched(address: str) -> bytes:
    """What is behind the address, by the proxies of the environment. Nothing else of the audit opens a connection."""
    from http.client import HTTPException
    from urllib.request import urlopen

    end, data = time.monotonic() + WHOLE_S, bytearray()
    try:
        with urlopen(address, timeout=clock.ANSWER_S) as answer:
            while piece := answer.read1(2**16):
                data += piece
                if len(data) > LARGEST or time.monotonic() > end:
                    raise CannotTestHere(f"{address}: larger or slower than any index", REMEDY)
    except (OSError, ValueError, HTTPException) as error:
        raise CannotTestHere(f"{address}: {error}", f"curl -fLO {address}, and --data FILE") from error
    return bytes(data)
