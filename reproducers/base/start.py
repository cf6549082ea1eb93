"""A verb (``python -m reproducers.X``, ``python -m model.X``) that cannot start here says why in one line.

It exits with 77, or 125 under --bisect. Needs nothing but the standard library, and parses on any Python since 3.6.
"""

import os
import sys

PYTHON = (3, 11, 4)  # the first whose tarfile refuses unsafe archives the way the store relies on
OURS = ("patchlane", "reproducers", "model")


def unimportable(error: BaseException) -> str:
    """The message for an import that failed for want of a package; "" for other errors, also of our own modules."""
    name = getattr(error, "name", None) or ""
    if not isinstance(error, ImportError) or not name or name.partition(".")[0] in OURS:
        return ""
    what = "not installed: " + name if isinstance(error, ModuleNotFoundError) else str(error).splitlines()[0]
    return "error: " + what + "\n  fix: make setup, and run .venv/bin/python"


def outdated() -> str:
    """Why this interpreter is too old, "" if it is not."""
    if sys.version_info[:3] >= PYTHON:
        return ""
    return "python " + sys.version.split()[0] + ", wanted " + ".".join(map(str, PYTHON)) + " or later"


def refuse(what: str, remedy: str) -> None:
    """End the verb with the exit code for a host that cannot test; git bisect has one of its own."""
    print(f"error: {what}\n  fix: {remedy}", file=sys.stderr)
    raise SystemExit(_code())


def _code() -> int:
    return 125 if "--bisect" in sys.argv else 77


def check() -> None:
    """Refuse an old interpreter, and give an import that fails before the verb's own handling its exit code."""
    code = _code()
    if outdated():
        refuse(outdated(), "make setup PYTHON=python3.12")

    def ended(kind: type, error: BaseException, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            print("interrupted: nothing had begun\n  fix: the same command, again", file=sys.stderr)
            sys.stderr.flush()
            os._exit(130)
        message = unimportable(error)
        if message:
            print(message, file=sys.stderr)
        else:
            sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
        if message or code == 125:
            sys.stdout.flush()
            os._exit(code)  # after an excepthook the interpreter would exit with 1, a verdict's code

    sys.excepthook = ended
