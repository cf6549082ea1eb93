"""Report unwritable folders and full disks with the remedy, before the work if possible."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from patchlane.base.errors import PatchlaneError

STORE_REMEDY = "make room or another folder for the store: export PATCHLANE_STORE=DIR"
SCRATCH_REMEDY = "make room or another folder for temporary files: export TMPDIR=DIR"
FULL = "make room there (df -h), or name another place"
FORBIDDEN = "ls -ld it, and name a place that you may write"
TAKEN = "git status, and move away what stands in its place"
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO), FULL),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), FORBIDDEN),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG), TAKEN),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "ulimit -n 4096"),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN), "run it again when less else runs: free -h"),
}
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
HOST_ERRNOS = set(REMEDIES)


def of_host(error: OSError) -> bool:
    """Whether this host refused (no room, no permission, no memory), rather than our code naming a wrong path."""
    return error.errno in HOST_ERRNOS or isinstance(error, shutil.Error)  # copytree collects refusals in this one


def described(error: OSError, where: str | Path = "") -> PatchlaneError:
    """The error as a message for the user: the path, the system's reason, and what mends it."""
    reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
    mend = REMEDIES.get(error.errno or errno.ENOSPC, "")  # of many copies that failed most want room
    return PatchlaneError(f"{error.filename or where or 'what is printed'}: {reason}", mend)


@contextlib.contextmanager
def writing(where: Path, remedy: str) -> Iterator[None]:
    """Turn a refusal of this host inside the block into a PatchlaneError that names ``where`` and the remedy."""
    try:
        yield
    except OSError as error:
        if not of_host(error):
            raise
        raise PatchlaneError(described(error, where).what, remedy) from error


def usable_folder(folder: Path, remedy: str) -> Path:
    """Make ``folder`` if it is absent and try a write that leaves nothing. Raises PatchlaneError with ``remedy``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(4096))
            probe.flush()
    except OSError as error:
        raise PatchlaneError(f"{folder} cannot be written: {error.strerror or error}", remedy) from error
    return folder


def usable_file(path: Path, remedy: str) -> Path:
    """Check as ``usable_folder`` does that ``path`` can be written whole. Raises PatchlaneError with ``remedy``."""
    usable_folder(path.parent, remedy)
    if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        raise PatchlaneError(f"{path} cannot be written: not a writable file", remedy)
    return path
