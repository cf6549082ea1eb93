"""The command ``patchlane``: ``audit`` alone where a wheel was installed, every verb of the project in a clone."""

from __future__ import annotations

import importlib
import shlex
import sys

from patchlane.base import ends, place

USAGE = """\
Usage: patchlane audit ...     patchlane audit --help lists its options

  audit  which known bugs of the LLM training stack an environment has, and what mends them

Running the packs' reproducers, the evidence and training need a clone of the project."""


def main() -> None:
    """Run the verb that the command line names."""
    if place.CLONE:
        return importlib.import_module("reproducers.__main__").main()  # type: ignore[no-any-return]
    ends.run(_verb, interrupted=_interrupted, wanting=_wanting)


def _verb() -> None:
    verb, rest = "".join(sys.argv[1:2]), sys.argv[2:]
    if verb in ("", "-h", "--help"):
        return print(USAGE)
    if verb != "audit":
        from patchlane.base.errors import PatchlaneError

        raise PatchlaneError(f"no verb {verb!r} here", "patchlane audit --help; all other verbs need a clone")
    from patchlane.verb.command import main as audit

    raise SystemExit(int(audit(rest)))


def _interrupted() -> str:
    command = shlex.join(["patchlane", *sys.argv[1:]])
    return f"interrupted: nothing is half-written\n  fix: {command}"


def _wanting(error: Exception) -> str:
    """The message for a library that is missing or broken."""
    name = getattr(error, "name", None) or ""
    if not isinstance(error, ImportError) or not name or name.partition(".")[0] == "patchlane":
        return ""
    return f"error: {error}\n  fix: {place.UPGRADE}"


if __name__ == "__main__":
    main()
