"""How every verb ends: expected failures in one line with the remedy, our own faults in a log worth sending."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from typing import Any

from reproducers.errors import PatchlaneError
from reproducers.start import unimportable
from reproducers.verdicts import Exit


def _interrupt(signum: int, frame: object) -> None:
    """A polite kill ends like Ctrl-C: children die with us."""
    raise KeyboardInterrupt


def guarded(app: Any) -> None:
    """Run a typer app; map every way it can end to the project's exit codes, without a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except PatchlaneError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from None
    except KeyboardInterrupt:
        print("interrupted; nothing half-written", file=sys.stderr)
        raise SystemExit(int(Exit.INTERRUPTED)) from None
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer and rich end with 1, a verdict's code
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered has no reader
            raise SystemExit(int(Exit.INTERRUPTED)) from None
        raise
    except Exception as error:
        if wanting := unimportable(error):
            print(wanting, file=sys.stderr)
            raise SystemExit(int(Exit.CANNOT_TEST)) from None
        with tempfile.NamedTemporaryFile("w", prefix="patchlane-fault-", suffix=".log", delete=False) as sink:
            traceback.print_exc(file=sink)
        print(
            f"fault of patchlane: {type(error).__name__}: {error}\n  log to report: {sink.name}",
            file=sys.stderr,
        )
        raise SystemExit(int(Exit.FAULT)) from None
